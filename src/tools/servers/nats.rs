//! A throwaway NATS server with JetStream.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::running::{Running, program};
use super::{free_port, launch};

/// It starts in no time.
const START: Duration = Duration::from_secs(30);

/// A NATS server of its caller's own, on one port for good. Dropping it ends the server.
pub struct Nats(Running);

impl Nats {
    /// A user that may do everything on it, and the password.
    pub const USER: &str = "shop";
    /// See [`Nats::USER`].
    pub const PASSWORD: &str = "t0p/secret";

    /// Fails, with the reason, if it is not installed.
    pub fn check() -> anyhow::Result<()> {
        installed().map(drop)
    }

    /// Starts a server in `dir` and returns when it takes connections. `users` are further users and `settings` further
    /// settings, as its configuration has them. Fails when it is not installed, or does not start within half a minute.
    pub async fn start(dir: &Path, users: &str, settings: &str) -> anyhow::Result<Self> {
        let made = || format!("NATS cannot have {}", dir.display());
        fs::create_dir_all(dir).with_context(made)?;
        let dir = fs::canonicalize(dir).with_context(made)?;
        let (port, program) = (free_port()?, installed()?);
        let [user, password] = [Self::USER, Self::PASSWORD];
        let written = format!(
            "host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: \"{}\" }}\n\
             authorization {{ users: [ {{ user: {user}, password: \"{password}\" }} {users} ] }}\n{settings}\n",
            dir.display()
        );
        fs::write(dir.join("nats.conf"), written).with_context(made)?;
        let serve = {
            let dir = dir.clone();
            move || {
                let mut command = Command::new(&program);
                command.arg("-c").arg(dir.join("nats.conf")).current_dir(&dir);
                launch(&mut command, &dir)
            }
        };
        Running::start("NATS", &dir, port, START, serve).await.map(Self)
    }
}

impl Deref for Nats {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl DerefMut for Nats {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.0
    }
}

fn installed() -> anyhow::Result<PathBuf> {
    program("nats-server", &[], "nats-server")
}
