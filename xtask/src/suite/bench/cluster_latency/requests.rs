//! What a mount counts: calls to servers, and requests of the kernel.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::shell;
use crate::suite::cluster::lab::Lab;

/// Calls that tell what has happened, without anybody waiting.
const CALLS_LATER: [&str; 3] = ["closes", "release", "recall_done"];
/// Requests of the kernel for which no program waits.
const REQUESTS_LATER: [&str; 6] = ["release", "releasedir", "forget", "batchforget", "interrupt", "destroy"];

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    calls: BTreeMap<String, u64>,
    requests: BTreeMap<String, u64>,
}

impl Requests {
    /// What the first mount of `lab` shows at `address` in its own network.
    ///
    /// # Errors
    /// When it shows nothing.
    pub(super) fn of(lab: &Lab, address: &str) -> anyhow::Result<Self> {
        let (host, port) = address.split_once(':').context("an address without a port")?;
        let ask = format!(
            "exec 3<>/dev/tcp/{host}/{port}; printf 'GET /metrics HTTP/1.1\\r\\nHost: ashlar\\r\\n\\r\\n' >&3; cat <&3"
        );
        let mut command = lab.at("client1");
        Ok(Self::parse(&shell::output(command.args(["bash", "-c", &ask]))?))
    }

    fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let Some((series, number)) = line.rsplit_once(' ') else { continue };
            let number = number.parse::<f64>().unwrap_or_default() as u64;
            let kind = label(series, "kind").unwrap_or_default();
            if series.starts_with("ashlar_call_duration_seconds_count{") && series.contains("side=\"sent\"") {
                *all.calls.entry(kind).or_default() += number;
            } else if series.starts_with("ashlar_kernel_requests_total{") {
                *all.requests.entry(kind).or_default() += number;
            }
        }
        all
    }

    /// What came after `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let more = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            now.iter().map(|(kind, count)| (kind.clone(), count - before.get(kind).unwrap_or(&0))).collect()
        };
        Self { calls: more(&self.calls, &before.calls), requests: more(&self.requests, &before.requests) }
    }

    pub(super) fn calls_waited_for(&self) -> u64 {
        sum(&self.calls, |kind| !CALLS_LATER.contains(&kind))
    }

    pub(super) fn calls_later(&self) -> u64 {
        sum(&self.calls, |kind| CALLS_LATER.contains(&kind))
    }

    pub(super) fn requests_waited_for(&self) -> u64 {
        sum(&self.requests, |kind| !REQUESTS_LATER.contains(&kind))
    }
}

fn sum(counts: &BTreeMap<String, u64>, counts_kind: impl Fn(&str) -> bool) -> u64 {
    counts.iter().filter(|(kind, _)| counts_kind(kind)).map(|(_, count)| count).sum()
}

fn label(series: &str, name: &str) -> Option<String> {
    let (_, rest) = series.split_once(&format!("{name}=\""))?;
    rest.split('"').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_requests_are_told_apart_by_who_waits() {
        let text = "ashlar_call_duration_seconds_count{side=\"sent\",service=\"meta\",kind=\"create\"} 7\n\
            ashlar_call_duration_seconds_count{side=\"sent\",service=\"meta\",kind=\"closes\"} 2\n\
            ashlar_call_duration_seconds_count{side=\"served\",service=\"meta\",kind=\"create\"} 70\n\
            ashlar_call_duration_seconds_sum{side=\"sent\",service=\"meta\",kind=\"create\"} 0.5\n\
            ashlar_kernel_requests_total{kind=\"create\"} 7\n\
            ashlar_kernel_requests_total{kind=\"release\"} 6\n";
        let now = Requests::parse(text);
        assert_eq!((now.calls_waited_for(), now.calls_later(), now.requests_waited_for()), (7, 2, 7));
        let before = Requests::parse(&text.replace("} 7\n", "} 5\n"));
        assert_eq!(now.since(&before).calls_waited_for(), 2);
        assert_eq!(now.since(&before).calls_later(), 0);
    }
}
