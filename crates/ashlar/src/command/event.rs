//! `ashlar event`: what has happened to the file system.

use crate::cli::{EventAction, EventArgs, Since};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, shown_bytes};
use anyhow::{Result, bail};
use ashlar_console::object::event::object;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Event, EventKind, Role, Timespec};
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;

/// Time between two looks at what has happened.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Which events are shown, and how.
struct Show<'a> {
    from: Option<Timespec>,
    kinds: &'a [EventKind],
    json: bool,
}

pub fn run(args: &EventArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let EventAction::List { follow, since, kind, json } = &args.action;
    let from = since.map(|since| match since {
        Since::At(at) => at,
        Since::Ago(seconds) => {
            let now = member.env.clock.now();
            Timespec { secs: now.secs.saturating_sub(seconds.into()), ..now }
        }
    });
    let show = Show { from, kinds: kind, json: *json };
    let (mut events, trouble) = ask(&member, 0)?;
    warn(&trouble);
    if !follow {
        events.retain(|event| show.is_wanted(event));
        show.all(&member.map().read().clone(), &events)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut newest, mut last_trouble) = (0, trouble);
    loop {
        newest = events.last().map_or(newest, |event| event.number);
        for event in events.iter().filter(|event| show.is_wanted(event)) {
            show.one(&member.map().read().clone(), event);
        }
        std::thread::sleep(LOOK_EVERY);
        let trouble;
        (events, trouble) = match ask(&member, newest) {
            Ok(told) => told,
            Err(error) => (Vec::new(), format!("{error:#}")),
        };
        if trouble != last_trouble {
            warn(&trouble);
            last_trouble = trouble;
        }
    }
}

fn ask(member: &Member, after: u64) -> Result<(Vec<Event>, String)> {
    match member.ask(&ManagerRequest::Events { after })? {
        ManagerReply::Events { events, trouble } => Ok((events, trouble)),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

fn warn(trouble: &str) {
    if !trouble.is_empty() {
        eprintln!("ashlar: events may be missing: {trouble}");
    }
}

impl Show<'_> {
    fn is_wanted(&self, event: &Event) -> bool {
        self.from.is_none_or(|from| event.what.at >= from)
            && (self.kinds.is_empty() || self.kinds.contains(&event.what.kind))
    }

    fn all(&self, map: &ClusterMap, events: &[Event]) -> Result<()> {
        if self.json {
            let objects: Vec<Value> = events.iter().map(|event| object(map, event)).collect();
            say(format_args!("{}", serde_json::to_string_pretty(&objects)?));
        } else {
            events.iter().for_each(|event| self.one(map, event));
        }
        Ok(())
    }

    fn one(&self, map: &ClusterMap, event: &Event) {
        if self.json {
            return say(object(map, event));
        }
        say(format_args!(
            "{}  {:<20}  {:<20}  {}",
            event.what.at.utc(),
            event.what.kind.name(),
            shown_bytes(event.what.subject.as_bytes()),
            shown_bytes(event.what.text.as_bytes()),
        ));
    }
}
