//! The one binary. All it does is in the library; see `mainspring::cli`.

use std::process::ExitCode;

/// The service allocates from many threads at once, for which this allocator is made.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything opens a connection. It fails only if a provider is installed already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "mainspring: cannot start: {why}");
            return ExitCode::FAILURE;
        }
    };
    let exit = runtime.block_on(mainspring::cli::run());
    // Nothing is left to wait for but name look-ups that nobody listens to any more.
    runtime.shutdown_background();
    exit
}
