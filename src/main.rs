//! The one binary. It starts the runtime and calls `mainspring::cli`; everything else is in the library.

use std::process::ExitCode;

/// The service allocates from many threads at once; this allocator is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything opens a connection. It fails only if a provider is installed already, and then that one is used.
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
    // Only name look-ups whose callers have gone may still run; they are not waited for.
    runtime.shutdown_background();
    exit
}
