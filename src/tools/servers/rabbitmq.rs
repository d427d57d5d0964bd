//! A throwaway RabbitMQ.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::running::{self, Running};
use super::{free_port, launch};
use crate::tools::process::Process;

/// A start of the Erlang machine takes five seconds on a quiet machine.
const START: Duration = Duration::from_secs(120);

/// Debian keeps its programs here, without those that ask for a user of its own.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

/// A RabbitMQ of its caller's own, on one port for good. Dropping it ends the server; the data stay.
pub struct RabbitMq {
    running: Running,
    /// Erlang's registry of names, of this server alone.
    _names: Arc<Process>,
    dir: PathBuf,
    port: u16,
    names_port: u16,
    peer_port: u16,
}

impl RabbitMq {
    /// The user that may do everything on it, and the password.
    pub const USER: &str = "shop";
    /// See [`RabbitMq::USER`].
    pub const PASSWORD: &str = "t0p/secret";

    /// Starts a server in `dir`, with what one before it kept there, and returns when it takes connections. `settings` are
    /// further lines of its configuration. Fails when RabbitMQ is not installed, or does not start within two minutes.
    pub async fn start(dir: &Path, settings: &[String]) -> anyhow::Result<Self> {
        let made = || format!("RabbitMQ cannot have {}", dir.display());
        fs::create_dir_all(dir).with_context(made)?;
        let dir = fs::canonicalize(dir).with_context(made)?;
        let [port, names_port, peer_port] = [free_port()?, free_port()?, free_port()?];
        let lines = [
            format!("listeners.tcp.1 = 127.0.0.1:{port}"),
            format!("default_user = {}", Self::USER),
            format!("default_pass = {}", Self::PASSWORD),
            "disk_free_limit.absolute = 1MB".to_owned(),
        ];
        let settings: String = lines.iter().chain(settings).map(|line| format!("{line}\n")).collect();
        let written = || -> std::io::Result<()> {
            fs::write(dir.join("rabbitmq.conf"), settings)?;
            fs::write(dir.join("plugins"), "[].\n")?;
            // What its own tools show it, to be let in.
            fs::write(dir.join(".erlang.cookie"), uuid::Uuid::now_v7().simple().to_string())?;
            fs::set_permissions(dir.join(".erlang.cookie"), fs::Permissions::from_mode(0o600))
        };
        written().with_context(made)?;
        let names = launch(
            Command::new(program("epmd")?).args(["-address", "127.0.0.1", "-port", &names_port.to_string()]),
            &dir,
        )?;
        let names = Arc::new(names);
        let again = {
            let (dir, names) = (dir.clone(), Arc::clone(&names));
            move || {
                ensure!(names.ended().is_none(), "epmd has ended");
                serve(&dir, port, names_port, peer_port)
            }
        };
        let running = Running::start("RabbitMQ", &dir, port, START, again).await?;
        Ok(Self { running, _names: names, dir, port, names_port, peer_port })
    }

    /// Fails, with the reason, if it is not installed.
    pub fn check() -> anyhow::Result<()> {
        ["epmd", "rabbitmq-server", "rabbitmqctl"].into_iter().try_for_each(|name| program(name).map(drop))
    }

    /// `rabbitmqctl` with these arguments, to be run. Each takes about a second.
    pub fn ctl(&self, args: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(program("rabbitmqctl")?);
        environment(&mut command, &self.dir, self.port, self.names_port, self.peer_port);
        command.args(["--quiet", "--node", &node(self.port)]).args(args).stdin(Stdio::null());
        Ok(command)
    }
}

impl Deref for RabbitMq {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for RabbitMq {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

/// Its name among Erlang's nodes.
fn node(port: u16) -> String {
    format!("r{port}@localhost")
}

fn program(name: &str) -> anyhow::Result<PathBuf> {
    running::program(name, &[PROGRAMS], "rabbitmq-server")
}

fn serve(dir: &Path, port: u16, names_port: u16, peer_port: u16) -> anyhow::Result<Process> {
    let mut command = Command::new(program("rabbitmq-server")?);
    environment(&mut command, dir, port, names_port, peer_port);
    // The script becomes the server, so that the child is the server itself.
    command.env("detached", "1");
    launch(&mut command, dir)
}

/// Keeps it and its tools apart from every other one on this machine.
fn environment(command: &mut Command, dir: &Path, port: u16, names_port: u16, peer_port: u16) {
    command
        .current_dir(dir)
        .env("HOME", dir)
        .env("ERL_EPMD_PORT", names_port.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODENAME", node(port))
        .env("RABBITMQ_DIST_PORT", peer_port.to_string())
        .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
        .env("RABBITMQ_LOG_BASE", dir.join("logs"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("plugins"))
        .env("RABBITMQ_CONF_ENV_FILE", dir.join("none"))
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2");
}
