//! Which timers a verb is about: the filters of a list, as flags.

use clap::Args;

use super::input;
use crate::model::timer::State;

/// The filters of a list. A timer matches all that are given.
#[derive(Args)]
#[group(skip)]
pub struct Which {
    /// Only this one; repeatable
    #[arg(long, value_parser = input::id)]
    id: Vec<String>,
    /// Only those in this state
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(State::ALL.map(State::word)))]
    state: Option<String>,
    /// Only those of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Only those to this receiver: scheme, host and port
    #[arg(long, value_name = "URL")]
    receiver: Option<String>,
    /// Only those to this destination
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    destination: Option<String>,
    /// Only those for this queue
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    queue: Option<String>,
    /// Only those for a queue that are for these: any, worker:NAME or group:NAME
    #[arg(long, value_name = "TO")]
    to: Option<String>,
    /// Only those of which this worker has a place now
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Only those made by this schedule
    #[arg(long, value_name = "ID", value_parser = input::schedule)]
    schedule: Option<String>,
    /// Only those with this label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::label)]
    label: Vec<(String, String)>,
    /// Only those due at this time or later
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    due_after: Option<String>,
    /// Only those due before this time
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    due_before: Option<String>,
}

impl Which {
    /// The filters that are given, by the names of the API. `id` may come more than once.
    pub fn fields(&self) -> Vec<(String, String)> {
        let mut fields: Vec<(String, String)> = [
            ("state", &self.state),
            ("owner", &self.owner),
            ("receiver", &self.receiver),
            ("destination", &self.destination),
            ("queue", &self.queue),
            ("to", &self.to),
            ("worker", &self.worker),
            ("schedule", &self.schedule),
            ("due_after", &self.due_after),
            ("due_before", &self.due_before),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.clone().map(|value| (name.to_owned(), value)))
        .collect();
        fields.extend(self.id.iter().map(|id| ("id".to_owned(), id.clone())));
        fields.extend(self.label.iter().map(|(name, value)| (format!("label.{name}"), value.clone())));
        fields
    }
}
