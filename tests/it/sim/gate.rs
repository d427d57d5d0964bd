//! The gate between a process and the database, at which statements are held, fail, or lose their answers.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::clock::Clock;
use mainspring::cold::{Call, Error, FailPoint};
use mainspring::model::time::UnixMs;

use super::world::World;

/// One process's clock, and its way to the database.
pub struct Door {
    pub world: Arc<World>,
    pub process: usize,
}

impl Clock for Door {
    fn now(&self) -> UnixMs {
        UnixMs::new(self.world.now())
    }

    fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.world.sleep(self.process, by)
    }
}

impl FailPoint for Door {
    fn before(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let Self { world, process } = self;
            world.hold().await;
            world.live(*process).await;
            // The one who waits for the writer goes on when its transaction is over.
            while matches!(call, Call::Begin | Call::Write) && world.writer().is_some() {
                world.stand().await;
            }
            if world.goes_wrong(*process, name, "fails", |odds| odds.fail) {
                return Err(if world.one_in(4) { Error::Busy } else { lost() });
            }
            world.goes_in(*process, name);
            Ok(())
        })
    }

    fn after(&self, call: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let Self { world, process } = self;
            world.comes_out(name).await;
            world.hold().await;
            world.live(*process).await;
            let answers = call != Call::Begin;
            if answers && world.goes_wrong(*process, name, "answer lost", |odds| odds.lose) {
                return Err(lost());
            }
            Ok(())
        })
    }

    fn begin(&self) -> Box<dyn Any + Send + Sync> {
        self.world.set_writer(Some(self.process));
        Box::new(Open(Arc::clone(&self.world)))
    }
}

/// An open transaction.
struct Open(Arc<World>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set_writer(None);
    }
}

fn lost() -> Error {
    Error::from(sqlx::Error::PoolTimedOut)
}
