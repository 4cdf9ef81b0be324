//! How many calls a process has made, by its metrics.
#![allow(dead_code, reason = "shared by test files that each use a part")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Calls by service and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<(String, String), u64>);

impl Counts {
    /// What the process that shows its metrics at `address` has sent so far.
    #[track_caller]
    pub fn of(address: &str) -> Counts {
        Counts::on_side(address, "sent")
    }

    /// What the processes that show their metrics at `addresses` have answered so far, together: also what goes to several servers for one call of a client.
    #[track_caller]
    pub fn served_by(addresses: &[String]) -> Counts {
        let mut all = Counts::default();
        for address in addresses {
            for (kind, count) in Counts::on_side(address, "served").0 {
                *all.0.entry(kind).or_insert(0) += count;
            }
        }
        all
    }

    #[track_caller]
    fn on_side(address: &str, side: &str) -> Counts {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ashlar\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let label = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let of_calls = text.lines().filter(|line| {
            line.starts_with("ashlar_call_duration_seconds_count{")
                && line.contains(&format!("side=\"{side}\""))
        });
        let count = |line: &str| {
            let number: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            ((label(line, "service"), label(line, "kind")), number as u64)
        };
        Counts(of_calls.map(count).collect())
    }

    /// What came after `before`; kinds of which there is nothing are left out.
    pub fn since(&self, before: &Counts) -> Counts {
        let more = |(kind, count): (&(String, String), &u64)| {
            let more = count - before.0.get(kind).copied().unwrap_or(0);
            (more > 0).then(|| (kind.clone(), more))
        };
        Counts(self.0.iter().filter_map(more).collect())
    }

    /// All calls of a service.
    pub fn to(&self, service: &str) -> u64 {
        self.0.iter().filter(|((to, _), _)| to == service).map(|(_, count)| count).sum()
    }

    /// Calls of a kind.
    pub fn kind(&self, service: &str, kind: &str) -> u64 {
        self.0.get(&(service.to_owned(), kind.to_owned())).copied().unwrap_or(0)
    }
}
