//! Registrations and changes of timers with a template: data is fitted to the template, and then written.
//!
//! A node may know a template as it was before. So nobody is refused by what is kept here: data that does not fit is held
//! against the template as the store has it. And a template may change before the timer is written: the store tells, and
//! the data as the caller sent it is fitted once more.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::problem::{FieldError, Problem};
use crate::api::request::{MAX_DATA, unknown_template};
use crate::api::{ApiState, Caller};
use crate::cold::{Error as ColdError, NewTimer, Registered};
use crate::model::template::TemplateUse;
use crate::service::Service;
use crate::service::density::Seconds;
use crate::templates::{Book, Misfit, Template};

/// How often data is fitted, before a template that keeps changing is given up.
const TRIES: usize = 10;

/// About the work that is done at one go, in bytes read.
const AT_ONCE: usize = 512 * 1024;

/// Why a timer was not registered.
pub(in crate::api) enum Failure {
    /// In the cold store.
    Cold(ColdError),
    /// It does not fit its template.
    Misfit(Vec<FieldError>),
    /// The whole call failed.
    Problem(Problem),
}

impl From<Failure> for Problem {
    fn from(why: Failure) -> Self {
        match why {
            Failure::Cold(why) => why.into(),
            Failure::Misfit(errors) => Self::invalid(errors),
            Failure::Problem(why) => why,
        }
    }
}

/// How timers are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum Way {
    /// With other callers' timers, in one transaction.
    Together,
    /// In a transaction of their own.
    Apart,
}

/// Data to be fitted to a template.
#[derive(Clone)]
struct Given {
    name: String,
    data: Option<Vec<u8>>,
}

/// Data that was fitted.
struct Fitted {
    data: Option<Vec<u8>>,
    template: TemplateUse,
}

/// Registers timers; those that name a template after their data was fitted to it, but for occurrences: theirs was fitted when
/// their schedule was written. Answers in the order given.
pub(in crate::api) async fn register(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    mut timers: Vec<NewTimer>,
    way: Way,
) -> Result<Vec<Result<Registered, Failure>>, Problem> {
    for timer in &mut timers {
        service.destinations.seal_target(timer.namespace, &mut timer.target).await?;
    }
    let quotas = state.node.namespaces.quotas(service.namespace());
    // Occurrences are made past the quotas, and count.
    let is_free = quotas.live_timers.is_none() && quotas.due_per_second.is_none();
    if is_free || timers.iter().all(|timer| timer.occurrence.is_some()) {
        return register_admitted(state, service, caller, timers, way).await;
    }
    // In a box: every registration would carry the room for it.
    Box::pin(register_within_quotas(state, service, caller, timers, way)).await
}

/// The same where the namespace has quotas for what is registered.
async fn register_within_quotas(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    timers: Vec<NewTimer>,
    way: Way,
) -> Result<Vec<Result<Registered, Failure>>, Problem> {
    let (namespace, namespaces) = (service.namespace(), &state.node.namespaces);
    let now = service.store.clock().now();
    let seconds: Vec<_> =
        timers.iter().map(|timer| Seconds::of(timer.due_at, timer.spread.as_ref(), now)).collect();
    let admitted = namespaces.admit(&service.store, &seconds).await?;
    // What is there already makes no timer more: a call that is repeated is answered as before.
    let over = timers.iter().zip(&admitted).filter(|(_, admitted)| admitted.is_err()).map(|(timer, _)| timer);
    let own: Vec<_> = over.filter(|timer| timer.caller_id).map(|timer| timer.uid).collect();
    let there = if own.is_empty() { Default::default() } else { service.store.find_many(&own).await? };
    let is_there =
        |timer: &NewTimer| there.get(&timer.uid).is_some_and(|row| !(timer.again && row.life.state.is_end()));
    let (mut asked, mut refused) = (Vec::new(), Vec::new());
    for (timer, admitted) in timers.into_iter().zip(&admitted) {
        let refusal = admitted.as_ref().err().filter(|_| !is_there(&timer));
        refused.push(refusal.map(|why| Problem::over(why.clone())));
        if refusal.is_none() {
            asked.push(timer);
        }
    }
    let registered = match asked.is_empty() {
        true => Ok(Vec::new()),
        false => register_admitted(state, service, caller, asked, way).await,
    };
    let mut registered = registered.map(Vec::into_iter);
    let mut not_made = Vec::new();
    let mut answers = Vec::with_capacity(refused.len());
    for ((refused, admitted), seconds) in refused.into_iter().zip(&admitted).zip(seconds) {
        let answer = match (refused, &mut registered) {
            (Some(problem), _) => Err(Failure::Problem(problem)),
            (None, Ok(answers)) => answers.next().unwrap_or(Err(Failure::Cold(ColdError::Busy))),
            (None, Err(why)) => Err(Failure::Problem(why.clone())),
        };
        if admitted.is_ok() && !matches!(answer, Ok(Registered::New(_))) {
            not_made.push(seconds);
        }
        answers.push(answer);
    }
    namespaces.give_back(namespace, &not_made);
    registered.map(|_| answers)
}

async fn register_admitted(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    timers: Vec<NewTimer>,
    way: Way,
) -> Result<Vec<Result<Registered, Failure>>, Problem> {
    let told = |answer: Result<Registered, ColdError>| answer.map_err(Failure::Cold);
    if timers.iter().all(|timer| timer.template.is_none() || timer.occurrence.is_some()) {
        return Ok(submit(service, timers, way).await?.into_iter().map(told).collect());
    }
    Box::pin(register_fitted(state, service, caller, timers, way)).await
}

async fn register_fitted(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    timers: Vec<NewTimer>,
    way: Way,
) -> Result<Vec<Result<Registered, Failure>>, Problem> {
    let told = |answer: Result<Registered, ColdError>| answer.map_err(Failure::Cold);
    let given: Vec<Option<Given>> = timers
        .iter()
        .map(|timer| Some(Given { name: timer.template.clone()?.name, data: timer.data.clone() }))
        .collect();
    let mut timers = timers;
    let mut answers: Vec<Option<Result<Registered, Failure>>> = timers.iter().map(|_| None).collect();
    let mut pending: Vec<usize> = (0..timers.len()).collect();
    for round in 0..TRIES {
        let wanted: Vec<(usize, Given)> =
            pending.iter().filter_map(|&i| Some((i, given[i].clone()?))).collect();
        let book = book(service, wanted.iter().map(|(_, given)| &given.name), round > 0).await?;
        let fitted =
            fit(state, caller, &book, wanted.iter().map(|(_, given)| given.clone()).collect()).await?;
        let mut misfits = Vec::new();
        for ((i, _), fitted) in wanted.into_iter().zip(fitted) {
            match fitted {
                Ok(Fitted { data, template }) => {
                    timers[i].data = data;
                    timers[i].template = Some(template);
                }
                Err(errors) => misfits.push((i, errors)),
            }
        }
        let is_misfit: BTreeSet<usize> = misfits.iter().map(|(i, _)| *i).collect();
        let fit: Vec<usize> = pending.iter().copied().filter(|i| !is_misfit.contains(i)).collect();
        // A template that is kept here may be an old one.
        pending = if round > 0 { Vec::new() } else { is_misfit.into_iter().collect() };
        if round > 0 {
            refuse(service, &timers, misfits, &mut answers).await?;
        }
        if !fit.is_empty() {
            let registered = submit(service, fit.iter().map(|&i| timers[i].clone()).collect(), way).await?;
            for (i, answer) in fit.into_iter().zip(registered) {
                match answer {
                    Ok(Registered::Unfitted(_)) => pending.push(i),
                    answer => answers[i] = Some(told(answer)),
                }
            }
        }
        if pending.is_empty() {
            break;
        }
        pending.sort_unstable();
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(Failure::Cold(ColdError::Busy)))).collect())
}

async fn submit(
    service: &Service,
    timers: Vec<NewTimer>,
    way: Way,
) -> Result<Vec<Result<Registered, ColdError>>, Problem> {
    if way == Way::Apart {
        return Ok(service.intake.register_many(timers).await);
    }
    let mut answers = Vec::with_capacity(timers.len());
    for timer in timers {
        answers.push(service.intake.register(timer).await?);
    }
    Ok(answers)
}

/// Answers timers whose data does not fit. One that was registered before, by the same request, is that timer: what its
/// template says now is not asked of it.
async fn refuse(
    service: &Service,
    timers: &[NewTimer],
    misfits: Vec<(usize, Vec<FieldError>)>,
    answers: &mut [Option<Result<Registered, Failure>>],
) -> Result<(), ColdError> {
    let own = misfits.iter().map(|(i, _)| &timers[*i]).filter(|timer| timer.caller_id);
    let uids: Vec<_> = own.map(|timer| timer.uid).collect();
    let rows = if uids.is_empty() { Default::default() } else { service.store.find_many(&uids).await? };
    for (i, errors) in misfits {
        let NewTimer { uid, request_hash, again, .. } = &timers[i];
        let same = rows
            .get(uid)
            .filter(|row| row.request_hash == *request_hash && !(*again && row.life.state.is_end()));
        answers[i] = Some(match same {
            Some(row) => Ok(Registered::Same(Box::new(row.clone()))),
            None => Err(Failure::Misfit(errors)),
        });
    }
    Ok(())
}

/// New data for a timer, fitted to its template.
pub(in crate::api) struct NewData {
    given: Option<Vec<u8>>,
    tries: usize,
}

impl NewData {
    /// Data as the caller sent it; `None` is `null`.
    pub const fn new(given: Option<Vec<u8>>) -> Self {
        Self { given, tries: 0 }
    }

    /// Fits it to this template, once more if it was fitted before; without a template it is what the caller sent.
    pub async fn fitted(
        &mut self,
        state: &ApiState,
        service: &Service,
        caller: Caller,
        name: Option<String>,
    ) -> Result<(Option<Vec<u8>>, Option<TemplateUse>), Problem> {
        while self.tries < TRIES {
            let is_new = self.tries > 0;
            self.tries += 1;
            let Some(name) = name.clone() else { return Ok((self.given.clone(), None)) };
            let book = book(service, std::iter::once(&name), is_new).await?;
            let given = Given { name: name.clone(), data: self.given.clone() };
            match fit(state, caller, &book, vec![given]).await?.pop() {
                Some(Ok(Fitted { data, template })) => return Ok((data, Some(template))),
                Some(Err(errors)) if is_new => return Err(Problem::invalid(errors)),
                _ => {}
            }
        }
        Err(ColdError::Busy.into())
    }
}

/// The templates of these names; `anew`: as the store has them now.
async fn book(
    service: &Service,
    names: impl Iterator<Item = &String>,
    anew: bool,
) -> Result<Book, ColdError> {
    let names: Vec<String> = names.collect::<BTreeSet<_>>().into_iter().cloned().collect();
    match (names.is_empty(), anew) {
        (true, _) => Ok(Book::new()),
        (false, true) => service.templates.renew(service.namespace(), &names).await,
        (false, false) => service.templates.get(service.namespace(), &names).await,
    }
}

/// Fits data to templates, a few at one go; answers in the order given.
async fn fit(
    state: &ApiState,
    caller: Caller,
    book: &Book,
    given: Vec<Given>,
) -> Result<Vec<Result<Fitted, Vec<FieldError>>>, Problem> {
    let most = state.node.namespaces.quotas(caller.namespace).payload_bytes;
    let mut answers = Vec::with_capacity(given.len());
    let mut given = given.into_iter().peekable();
    while given.peek().is_some() {
        let (mut group, mut effort) = (Vec::new(), 0);
        while effort < AT_ONCE
            && let Some(one) = given.next()
        {
            let template = book.get(&one.name).cloned().flatten();
            effort += template.as_ref().map_or(0, |template| work(template, &one));
            group.push((one, template));
        }
        let fit = move || {
            group.into_iter().map(|(given, template)| fit_one(given, template, most)).collect::<Vec<_>>()
        };
        answers.extend(state.check(caller, effort, fit).await?);
    }
    Ok(answers)
}

fn work(template: &Template, given: &Given) -> usize {
    template.effort(given.data.as_ref().map_or(0, Vec::len).min(MAX_DATA))
}

fn fit_one(
    given: Given,
    template: Option<Arc<Template>>,
    most: Option<usize>,
) -> Result<Fitted, Vec<FieldError>> {
    let Given { name, data } = given;
    let Some(template) = template else { return Err(vec![unknown_template(&name)]) };
    match template.fit(data.as_deref()) {
        // Defaults have made it larger.
        Ok(Some(data)) if let Some(most) = most.filter(|most| data.len() > *most) => {
            let detail = format!(
                "{} bytes with the defaults of its template; this namespace's quota `payload_bytes` is {most}",
                data.len()
            );
            Err(vec![FieldError::new("/data", "quota", detail)])
        }
        Ok(data) => Ok(Fitted { data, template: TemplateUse { name, fitted: Some(template.hash) } }),
        Err(misfits) => Err(misfits.into_iter().map(|misfit: Misfit| FieldError::from(misfit)).collect()),
    }
}
