//! `schedule …`: rules that make timers, on a running server.

use clap::{Args, Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::delivery::Dispatch;
use super::exit::{Exit, usage};
use super::show::{self, Fields};
use super::{input, out};
use crate::clock::{Clock, SystemClock};
use crate::model::schedule::{MissedPolicy, Overlap, ScheduleState};

/// The fields of a schedule that are shown first, in this order; all others follow by name.
const FIRST: [&str; 12] = [
    "state", "cron", "every", "daily", "zone", "next_at", "made", "target", "data", "missed", "overlap",
    "labels",
];

/// The longest target in a cell.
const MAX_CELL: usize = 48;

/// `schedule …`
#[derive(Subcommand)]
pub enum Verb {
    /// Make a schedule, or put another in the place of the one of this id
    Put(Box<Put>),
    /// Show a schedule
    Get(Named),
    /// List schedules by id
    Ls(Ls),
    /// Remove a schedule; its occurrences that are still ahead are cancelled
    Rm(Named),
    /// Skip nominal times until it is resumed; they are recorded
    Pause(Named),
    /// Go on from the next nominal time
    Resume(Named),
    /// Make an occurrence now, outside the rule
    Run(Named),
    /// Make occurrences of nominal times that were skipped and never became one
    #[command(after_help = "Example:\n  \
        mainspring schedule backfill daily-report --from 2026-12-01T00:00:00+08:00 --to 2026-12-08T00:00:00+08:00")]
    Backfill(Backfill),
    /// Print the next nominal times
    Next(Next),
    /// List nominal times that were skipped and became no occurrence, the latest first
    Skipped(SkippedOf),
    /// List nominal times of all schedules, made or not
    Upcoming(Upcoming),
}

#[derive(Args)]
pub struct Named {
    /// The schedule
    #[arg(value_parser = input::schedule)]
    id: String,
}

/// A word of the contract as a flag's value.
macro_rules! word_of {
    ($name:ident of $of:ident { $($variant:ident),* }) => {
        #[derive(Clone, Copy, ValueEnum)]
        #[value(rename_all = "snake_case")]
        enum $name {
            $($variant),*
        }

        impl $name {
            const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $of::$variant.word()),*
                }
            }
        }
    };
}

word_of!(MissedWord of MissedPolicy { FireAll, FireOnce, Skip });
word_of!(OverlapWord of Overlap { Skip, QueueOne, Allow });
word_of!(StateWord of ScheduleState { Active, Paused, Ended });

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring schedule put daily-report --cron '0 9 * * 1-5' --zone Asia/Shanghai --destination reports\n  \
    mainspring schedule put poll --every 15m --webhook https://shop.example/hooks/poll --overlap skip\n  \
    mainspring schedule put backup --daily 03:30 --zone Europe/Stockholm --webhook https://shop.example/backup --missed fire_once\n  \
    mainspring schedule put clean-7 --daily 08:00 --every-days 2 --zone Asia/Shanghai --queue tasks --to group:floor-7 --times 6")]
pub struct Put {
    /// Its id
    #[arg(value_parser = input::schedule)]
    id: String,
    /// When: 5 fields (minute, hour, day of month, month, day of week), or 6 with the second first
    #[arg(long, value_name = "CRON", required_unless_present_any = ["every", "daily", "json_file"], conflicts_with_all = ["every", "daily"])]
    cron: Option<String>,
    /// When: a fixed distance, such as 15m
    #[arg(long, value_name = "DURATION", value_parser = input::span, conflicts_with = "daily")]
    every: Option<String>,
    /// When: a time of day, such as 09:00
    #[arg(long, value_name = "TIME")]
    daily: Option<String>,
    /// With --daily: only every so many days
    #[arg(long, value_name = "DAYS", requires = "daily")]
    every_days: Option<u32>,
    /// The time zone of --cron and --daily; UTC unless set
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// No nominal time before this moment
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    start_at: Option<String>,
    /// No nominal time after this moment
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    end_at: Option<String>,
    /// The most occurrences
    #[arg(long, value_name = "N")]
    max_occurrences: Option<i64>,
    /// Nominal times that nobody could fire for more than a minute; fire_all unless set
    #[arg(long, value_name = "POLICY", value_enum)]
    missed: Option<MissedWord>,
    /// With it none fires that is older; 1h unless set
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    missed_within: Option<String>,
    /// While the occurrence before has not ended; allow unless set
    #[arg(long, value_name = "POLICY", value_enum)]
    overlap: Option<OverlapWord>,
    /// Deliver to this webhook
    #[arg(long, value_name = "URL", required_unless_present_any = ["destination", "queue", "json_file"], conflicts_with = "destination")]
    webhook: Option<String>,
    /// Deliver to this destination
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    destination: Option<String>,
    /// Hand occurrences to workers of this queue
    #[arg(long, value_name = "NAME", value_parser = input::name, conflicts_with_all = ["webhook", "destination"])]
    queue: Option<String>,
    #[command(flatten)]
    dispatch: Dispatch,
    /// The payload, JSON
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// The template that the payload is fitted to
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    template: Option<String>,
    /// Whom the occurrences are about
    #[arg(long)]
    owner: Option<String>,
    /// A label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::label)]
    label: Vec<(String, String)>,
    /// Whatever else a schedule may say, as a JSON object in a file; `-` is stdin
    #[arg(long, value_name = "FILE")]
    json_file: Option<std::path::PathBuf>,
}

impl Put {
    fn request(&self) -> anyhow::Result<Value> {
        let mut request: Map<String, Value> = match &self.json_file {
            Some(path) => serde_json::from_str(&input::file("--json-file", path)?)
                .map_err(|why| usage(format!("--json-file holds no JSON object: {why}")))?,
            None => Map::new(),
        };
        let texts = [
            ("cron", &self.cron),
            ("every", &self.every),
            ("zone", &self.zone),
            ("start_at", &self.start_at),
            ("end_at", &self.end_at),
            ("template", &self.template),
            ("owner", &self.owner),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                request.insert(name.into(), json!(value));
            }
        }
        if let Some(at) = &self.daily {
            request.insert("daily".into(), json!({"at": at, "every_days": self.every_days.unwrap_or(1)}));
        }
        if let Some(most) = self.max_occurrences {
            request.insert("max_occurrences".into(), json!(most));
        }
        let mut missed = Map::new();
        missed.extend(self.missed.map(|policy| ("policy".to_owned(), json!(policy.word()))));
        missed.extend(self.missed_within.as_ref().map(|within| ("within".to_owned(), json!(within))));
        if !missed.is_empty() {
            request.insert("missed".into(), Value::Object(missed));
        }
        if let Some(overlap) = self.overlap {
            request.insert("overlap".into(), json!(overlap.word()));
        }
        if let Some(url) = &self.webhook {
            request.insert("target".into(), json!({"webhook": {"url": url}}));
        }
        if let Some(name) = &self.destination {
            request.insert("target".into(), json!({"destination": name}));
        }
        if let Some(name) = &self.queue {
            request.insert("target".into(), json!({"queue": name}));
        }
        if let Some(dispatch) = self.dispatch.given() {
            request.insert("dispatch".into(), json!(dispatch));
        }
        if let Some(data) = &self.data {
            let data: Value =
                serde_json::from_str(data).map_err(|why| usage(format!("--data is no JSON: {why}")))?;
            request.insert("data".into(), data);
        }
        let mut labels = Map::new();
        for (name, value) in &self.label {
            if labels.insert(name.clone(), json!(value)).is_some() {
                return Err(usage(format!("--label {name} is given twice")));
            }
        }
        if !labels.is_empty() {
            request.insert("labels".into(), Value::Object(labels));
        }
        Ok(Value::Object(request))
    }
}

#[derive(Args)]
pub struct Ls {
    /// Only those in this state
    #[arg(long, value_enum)]
    state: Option<StateWord>,
    /// Only those of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Only those to this destination
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    destination: Option<String>,
    /// Only those for this queue
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    queue: Option<String>,
    /// Only those with this label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::label)]
    label: Vec<(String, String)>,
    /// At most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on after this id
    #[arg(long, value_name = "ID", value_parser = input::schedule)]
    cursor: Option<String>,
}

#[derive(Args)]
pub struct Backfill {
    #[command(flatten)]
    named: Named,
    /// Nominal times at this moment or later
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    from: String,
    /// Nominal times at this moment or before it
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    to: String,
}

#[derive(Args)]
pub struct Next {
    #[command(flatten)]
    named: Named,
    /// How many
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,
}

#[derive(Args)]
pub struct SkippedOf {
    #[command(flatten)]
    named: Named,
    /// The most ranges
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

#[derive(Args)]
pub struct Upcoming {
    /// At this moment or later; now unless set
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    from: Option<String>,
    /// Before this moment; a day after --from unless set
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    to: Option<String>,
    /// Only of schedules for this queue
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    queue: Option<String>,
    /// Only of those that are given out to this group
    #[arg(long, value_name = "NAME")]
    to_group: Option<String>,
}

fn path(id: &str) -> String {
    format!("/v1/schedules/{id}")
}

/// Runs one `schedule` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => {
            let reply = client.call(Method::PUT, &path(&put.id), &[], Some(&put.request()?)).await?;
            show::put(&reply, json, line)?;
        }
        Verb::Get(Named { id }) => {
            let reply = client.ask(Method::GET, &path(id), &[]).await?;
            show::one(&reply, json, block)?;
        }
        Verb::Ls(ls) => {
            let mut query: Vec<(String, String)> = vec![("limit".into(), ls.limit.to_string())];
            let texts = [
                ("state", ls.state.map(|state| state.word().to_owned())),
                ("owner", ls.owner.clone()),
                ("destination", ls.destination.clone()),
                ("queue", ls.queue.clone()),
                ("cursor", ls.cursor.clone()),
            ];
            query.extend(texts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
            query.extend(ls.label.iter().map(|(name, value)| (format!("label.{name}"), value.clone())));
            let reply = client.ask(Method::GET, "/v1/schedules", &query).await?;
            show::all(&reply, json, "no schedule matches", table)?;
        }
        Verb::Rm(Named { id }) => {
            let reply = client.ask(Method::DELETE, &path(id), &[]).await?;
            show::removed(&reply, json, id)?;
        }
        Verb::Pause(Named { id }) => act(&client, id, "pause", json).await?,
        Verb::Resume(Named { id }) => act(&client, id, "resume", json).await?,
        Verb::Run(Named { id }) => {
            let reply = client.ask(Method::POST, &format!("{}/run", path(id)), &[]).await?;
            show::one(&reply, json, |timer| {
                format!("{}: {}", show::text(timer, "id"), show::text(timer, "state"))
            })?;
        }
        Verb::Backfill(Backfill { named: Named { id }, from, to }) => {
            let range = json!({"from": from, "to": to});
            let reply =
                client.call(Method::POST, &format!("{}/backfill", path(id)), &[], Some(&range)).await?;
            show::one(&reply, json, |made| format!("{id}: {} made", show::text(made, "made")))?;
        }
        Verb::Next(Next { named: Named { id }, count }) => {
            let count = [("count".to_owned(), count.to_string())];
            let reply = client.ask(Method::GET, &format!("{}/next", path(id)), &count).await?;
            if json {
                out::print(&reply.json)?;
            } else {
                let next: Value = reply.read()?;
                let times = next["items"].as_array().cloned().unwrap_or_default();
                for at in &times {
                    out::print(at.as_str().unwrap_or_default())?;
                }
                if times.is_empty() {
                    out::note("(no nominal time: it is paused, or has ended)");
                }
            }
        }
        Verb::Skipped(SkippedOf { named: Named { id }, limit }) => {
            let limit = [("limit".to_owned(), limit.to_string())];
            let reply = client.ask(Method::GET, &format!("{}/skipped", path(id)), &limit).await?;
            show::all(&reply, json, "no nominal time was skipped before it became an occurrence", skipped)?;
        }
        Verb::Upcoming(Upcoming { from, to, queue, to_group }) => {
            let query = [("from", from), ("to", to), ("queue", queue), ("to_group", to_group)].into_iter();
            let query: Vec<(String, String)> =
                query.filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
            let reply = client.ask(Method::GET, "/v1/schedules/upcoming", &query).await?;
            show::all(&reply, json, "no nominal time is ahead", upcoming)?;
        }
    }
    Ok(Exit::Ok)
}

async fn act(client: &Client, id: &str, what: &str, json: bool) -> anyhow::Result<()> {
    let reply = client.ask(Method::POST, &format!("{}/{what}", path(id)), &[]).await?;
    show::one(&reply, json, line)
}

/// When a schedule's nominal times are: `cron 0 9 * * 1-5`, `every PT15M`, `daily 09:00`.
fn rule(schedule: &Fields) -> String {
    let found = ["cron", "every"].into_iter().find_map(|name| {
        let value = show::text(schedule, name);
        (!value.is_empty()).then(|| format!("{name} {value}"))
    });
    let daily = || {
        let raw = schedule.get("daily").and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let raw = raw.unwrap_or_default();
        let at = raw["at"].as_str().unwrap_or_default();
        match raw["every_days"].as_u64() {
            Some(days) if days > 1 => format!("daily {at} every {days} days"),
            _ => format!("daily {at}"),
        }
    };
    found.unwrap_or_else(daily)
}

/// `daily-report: active, cron 0 9 * * 1-5, next at …`.
fn line(schedule: &Fields) -> String {
    let [id, state, next] = ["id", "state", "next_at"].map(|field| show::text(schedule, field));
    let next = if next.is_empty() { next } else { format!(", next at {next}") };
    format!("{id}: {state}, {}{next}", rule(schedule))
}

fn block(schedule: &Fields) -> String {
    let id = show::text(schedule, "id");
    show::fields(&id, &FIRST, &["id"], schedule, SystemClock.now())
}

fn table(schedules: &[Fields]) -> String {
    let head = ["ID", "STATE", "RULE", "ZONE", "NEXT", "MADE", "TARGET"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in schedules {
        let [id, state, zone, next, made, target] =
            ["id", "state", "zone", "next_at", "made", "target"].map(|field| show::text(one, field));
        rows.push(vec![id, state, rule(one), zone, next, made, out::short(&target, MAX_CELL)]);
    }
    out::table(&rows)
}

fn skipped(ranges: &[Fields]) -> String {
    columns(["FIRST", "LAST", "COUNT", "SKIPPED"], ranges)
}

fn upcoming(items: &[Fields]) -> String {
    columns(["AT", "SCHEDULE", "TIMER", "MADE"], items)
}

/// A table whose columns are fields of these names.
fn columns<const N: usize>(head: [&str; N], items: &[Fields]) -> String {
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in items {
        rows.push(head.map(|name| show::text(one, &name.to_lowercase())).to_vec());
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(line: &str) -> Value {
        input::parsed::<Put>(line).request().unwrap()
    }

    #[test]
    fn a_schedule_is_what_is_given() {
        assert_eq!(
            sent(
                "s --daily 09:00 --every-days 2 --zone Asia/Shanghai --webhook http://a/ --label app=shop --missed fire_once"
            ),
            json!({"daily": {"at": "09:00", "every_days": 2}, "zone": "Asia/Shanghai", "labels": {"app": "shop"},
                "target": {"webhook": {"url": "http://a/"}}, "missed": {"policy": "fire_once"}})
        );
        assert_eq!(
            sent("s --every 15m --destination d --overlap queue_one --missed-within 1d --data 7"),
            json!({"every": "PT15M", "target": {"destination": "d"}, "overlap": "queue_one",
                "missed": {"within": "P1D"}, "data": 7})
        );
        assert_eq!(
            sent("s --every 15m --queue q --to group:g7 --times 6 --repeat"),
            json!({"every": "PT15M", "target": {"queue": "q"},
                "dispatch": {"to": "group:g7", "times": 6, "repeat": true}})
        );
        assert!(input::parsed::<Put>("s --every 15m --webhook http://a/ --data {").request().is_err());
    }

    #[test]
    fn a_schedule_is_a_line() {
        let one = |rule: Value| -> Fields {
            let mut whole = json!({"id": "s", "state": "active", "cron": null, "every": null, "daily": null,
                "next_at": "2026-12-01T01:00:00.000Z"});
            whole.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
            serde_json::from_value(whole).unwrap()
        };
        let next = "next at 2026-12-01T01:00:00.000Z";
        for (fields, expected) in [
            (json!({"cron": "0 9 * * *"}), format!("s: active, cron 0 9 * * *, {next}")),
            (json!({"every": "PT15M"}), format!("s: active, every PT15M, {next}")),
            (json!({"daily": {"at": "09:00", "every_days": 1}}), format!("s: active, daily 09:00, {next}")),
            (
                json!({"daily": {"at": "09:00", "every_days": 2}, "next_at": null, "state": "paused"}),
                "s: paused, daily 09:00 every 2 days".to_owned(),
            ),
        ] {
            assert_eq!(line(&one(fields)), expected);
        }
    }
}
