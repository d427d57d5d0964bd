//! A small disk of its caller's own, which can be filled to the last byte: a tmpfs.
//!
//! Mounting needs root, or `CAP_SYS_ADMIN` in a container. A limit on the size of a file needs neither, and is another
//! error than a full disk.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};

/// How often what has become free is filled again.
const EVERY: Duration = Duration::from_millis(50);
/// How much is written at once.
const CHUNK: usize = 1 << 20;

/// A mounted disk. Dropping it unmounts it; what was on it is gone then.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    filler: Option<Filler>,
}

/// Keeps a disk full.
#[derive(Debug)]
struct Filler {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl SmallDisk {
    /// Mounts a disk of so many MiB on `path`, a directory. Everybody may pass through it. Fails without the right to
    /// mount.
    pub fn mount(path: &Path, mib: u32) -> anyhow::Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0711"), "tmpfs"]).arg(path);
        let output = mount.output().context("there is no program `mount`")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "a small disk cannot be mounted; it takes root, in a container CAP_SYS_ADMIN: {}",
                said.trim()
            );
        }
        Ok(Self { path: path.to_owned(), filler: None })
    }

    /// Whether one may be mounted here; why not, if not.
    pub fn may_be_mounted() -> anyhow::Result<()> {
        let dir = tempfile::Builder::new().prefix("mainspring-disk").tempdir()?;
        Self::mount(dir.path(), 1).map(drop)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills it to the last byte, and again whatever becomes free, until [`SmallDisk::make_room`]. Returns when it is
    /// full.
    pub fn fill(&mut self) -> anyhow::Result<()> {
        let path = self.path.join("filler");
        let mut file =
            File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        fill(&mut file)?;
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let work = move || {
            // An error other than a full disk ends it; the fault is then seen not to land.
            while !ended.load(Ordering::Relaxed) && fill(&mut file).is_ok() {
                std::thread::sleep(EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("filler".into()).spawn(work)?;
        self.filler = Some(Filler { over, thread });
        Ok(())
    }

    /// Gives back all that was filled.
    pub fn make_room(&mut self) -> anyhow::Result<()> {
        let Some(filler) = self.filler.take() else { return Ok(()) };
        filler.over.store(true, Ordering::Relaxed);
        // It ends within its next look.
        let _ = filler.thread.join();
        fs::remove_file(self.path.join("filler")).context("the disk cannot be given back")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Some(filler) = self.filler.take() {
            filler.over.store(true, Ordering::Relaxed);
            let _ = filler.thread.join();
        }
        // Lazily: whoever still has a file open keeps it a moment longer.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).output();
    }
}

/// Writes until nothing more fits.
fn fill(file: &mut File) -> std::io::Result<()> {
    let zeros = vec![0; CHUNK];
    loop {
        match file.write(&zeros) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(why) if why.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(why) => return Err(why),
        }
    }
}
