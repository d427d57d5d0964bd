//! A throwaway Mosquitto.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::running::{Running, program};
use super::{free_port, launch};

/// It starts in no time.
const START: Duration = Duration::from_secs(30);

/// A Mosquitto of its caller's own, on one port for good. Dropping it ends the server.
pub struct Mosquitto(Running);

impl Mosquitto {
    /// The only user that it lets in, and the password.
    pub const USER: &str = "shop";
    /// See [`Mosquitto::USER`].
    pub const PASSWORD: &str = "t0p/secret";

    /// Fails, with the reason, if it is not installed.
    pub fn check() -> anyhow::Result<()> {
        installed().map(drop)
    }

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
        let mut user = Command::new(program("mosquitto_passwd", &[], "mosquitto")?);
        user.arg("-b").arg(&passwords).args([Self::USER, Self::PASSWORD]).stdin(Stdio::null());
        let output = user.output().context("mosquitto_passwd cannot be started")?;
        ensure!(output.status.success(), "mosquitto_passwd: {}", String::from_utf8_lossy(&output.stderr));
        let program = installed()?;
        let serve = {
            let dir = dir.clone();
            move || {
                let mut command = Command::new(&program);
                command.arg("-c").arg(dir.join("mosquitto.conf")).current_dir(&dir);
                launch(&mut command, &dir)
            }
        };
        Running::start("Mosquitto", &dir, port, START, serve).await.map(Self)
    }
}

impl Deref for Mosquitto {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl DerefMut for Mosquitto {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.0
    }
}

fn installed() -> anyhow::Result<PathBuf> {
    program("mosquitto", &[], "mosquitto")
}
