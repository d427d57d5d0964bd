//! A clock for one throwaway server, which can be set without touching this machine's: libfaketime, loaded before the
//! program.
//!
//! The server reads the offset from a file, anew for each look at its clock, so a jump shows in all of its processes at
//! once. Only the time of day jumps; the monotonic clock runs on, as when an operator sets a machine's clock.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Context;

/// Where the library is, below each of the first directories or of those within them.
const ROOTS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];
const LIBRARY: &str = "faketime/libfaketime.so.1";

/// A clock that can be set.
pub struct FakeClock {
    library: PathBuf,
    file: PathBuf,
    ahead_s: AtomicI64,
}

impl FakeClock {
    /// A clock that is right, with its file in `dir`, which the server must be able to pass. Fails when libfaketime is
    /// not installed.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let clock = Self { library: Self::library()?, file: dir.join("clock"), ahead_s: AtomicI64::new(0) };
        clock.set(0)?;
        Ok(clock)
    }

    /// Moves it by so many seconds, from where it stands.
    pub fn jump(&self, by_s: i64) -> anyhow::Result<()> {
        self.set(self.ahead_s() + by_s)
    }

    /// How many seconds it is ahead of this machine's.
    pub fn ahead_s(&self) -> i64 {
        self.ahead_s.load(Ordering::Relaxed)
    }

    fn set(&self, ahead_s: i64) -> anyhow::Result<()> {
        // Renamed, so that nobody reads half a number.
        let aside = self.file.with_extension("new");
        let write = || {
            fs::write(&aside, format!("{ahead_s:+}\n"))?;
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o644))?;
            fs::rename(&aside, &self.file)
        };
        write().with_context(|| format!("{} cannot be written", self.file.display()))?;
        self.ahead_s.store(ahead_s, Ordering::Relaxed);
        Ok(())
    }

    /// Where libfaketime is. Fails when it is not installed.
    pub fn library() -> anyhow::Result<PathBuf> {
        let within = |root: &str| -> Vec<PathBuf> {
            let entries = fs::read_dir(root).into_iter().flatten().flatten();
            [PathBuf::from(root)].into_iter().chain(entries.map(|entry| entry.path())).collect()
        };
        ROOTS.iter().flat_map(|root| within(root)).map(|dir| dir.join(LIBRARY)).find(|path| path.is_file()).context(
            "no libfaketime is installed here, and without it the clock of one server cannot be set; on Debian and \
             Ubuntu: apt-get install libfaketime",
        )
    }

    /// Lets a program that is about to be started have this clock.
    pub(super) fn give(&self, to: &mut Command) {
        to.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        to.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("NO_FAKE_STAT", "1");
    }

    /// Removes what the library leaves in shared memory of a process that has ended by a signal. A later process of the
    /// same number could not start beside it.
    pub(super) fn tidy(pid: u32) {
        for left in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            // Most often there is none.
            let _ = fs::remove_file(Path::new("/dev/shm").join(left));
        }
    }
}
