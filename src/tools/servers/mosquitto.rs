//! A throwaway Mosquitto: stopped, killed and started again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::future::BoxFuture;
use rustix::process::Signal;

use super::{free_port, launch, program_dirs, ready};
use crate::tools::process::Process;

/// It starts in no time.
const START: Duration = Duration::from_secs(30);
/// A killed server is gone in milliseconds, unless the disk holds it.
const STOP: Duration = Duration::from_secs(10);

/// A Mosquitto of its caller's own, on one port for good. Dropping it ends the server.
pub struct Mosquitto {
    process: Process,
    dir: PathBuf,
    port: u16,
}

impl Mosquitto {
    /// The only user that it lets in, and the password.
    pub const USER: &str = "shop";
    /// See [`Mosquitto::USER`].
    pub const PASSWORD: &str = "t0p/secret";

    /// Starts a server in `dir` and returns when it takes connections. `settings` are further lines of its configuration.
    /// Fails when Mosquitto is not installed, or does not start within half a minute.
    pub async fn start(dir: &Path, settings: &[String]) -> anyhow::Result<Self> {
        let made = || format!("Mosquitto cannot have {}", dir.display());
        fs::create_dir_all(dir).with_context(made)?;
        let dir = fs::canonicalize(dir).with_context(made)?;
        let (port, passwords) = (free_port()?, dir.join("passwords"));
        let lines = [
            format!("password_file {}", passwords.display()),
            "allow_anonymous false".to_owned(),
            "log_dest stderr".to_owned(),
            "log_type all".to_owned(),
            // It would otherwise become another user, who cannot read these files.
            "user root".to_owned(),
            format!("listener {port} 127.0.0.1"),
        ];
        let settings: String = lines.iter().chain(settings).map(|line| format!("{line}\n")).collect();
        let written = || -> std::io::Result<()> {
            fs::write(dir.join("mosquitto.conf"), settings)?;
            fs::write(&passwords, "")?;
            fs::set_permissions(&passwords, fs::Permissions::from_mode(0o600))
        };
        written().with_context(made)?;
        let mut user = Command::new(program("mosquitto_passwd")?);
        user.arg("-b").arg(&passwords).args([Self::USER, Self::PASSWORD]).stdin(Stdio::null());
        let output = user.output().context("mosquitto_passwd cannot be started")?;
        ensure!(output.status.success(), "mosquitto_passwd: {}", String::from_utf8_lossy(&output.stderr));
        let process = serve(&dir)?;
        let server = Self { process, dir, port };
        server.ready().await?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// SIGKILL; returns when it is gone. Its port stays free for it.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.process.end_with(Signal::KILL, STOP).await?;
        Ok(())
    }

    /// Starts it again and returns when it takes connections. Fails when it still runs.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.process.ended().is_some(), "kill Mosquitto before you start it again");
        self.process = serve(&self.dir)?;
        self.ready().await
    }

    /// Stops it in its tracks: connections stay, nothing is answered. Returns when it stands still. Fails when it has ended.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.process.pause()
    }

    /// Lets it go on where it was stopped. Fails when it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.process.resume()
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let address = self.address();
        let answers = || -> BoxFuture<'_, bool> {
            Box::pin(async move { tokio::net::TcpStream::connect(address).await.is_ok() })
        };
        ready("Mosquitto", &self.process, &self.dir, START, answers).await
    }
}

fn program(name: &str) -> anyhow::Result<PathBuf> {
    let dirs = program_dirs().into_iter();
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file()).with_context(|| {
        format!("no Mosquitto is installed here ({name}); on Debian and Ubuntu: apt-get install mosquitto")
    })
}

fn serve(dir: &Path) -> anyhow::Result<Process> {
    let mut command = Command::new(program("mosquitto")?);
    command.arg("-c").arg(dir.join("mosquitto.conf")).current_dir(dir);
    launch(&mut command, dir)
}
