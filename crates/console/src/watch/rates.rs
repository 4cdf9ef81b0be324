//! What a server does at this moment: the difference of two samples.

use super::sample::{KindCount, Sample, Traffic};
use std::collections::BTreeMap;

/// Share of calls within [`KindRate::slow_s`].
const SLOW_SHARE: f64 = 0.99;
/// Calls that take as long as somebody else wants: they say nothing about how fast a server is.
const WAITING: [&str; 1] = ["lock_wait"];

/// Calls of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KindRate {
    /// The service.
    pub service: String,
    /// The kind.
    pub kind: String,
    /// Calls per second.
    pub per_s: f64,
    /// Of them, those that fail.
    pub errors_per_s: f64,
    /// How long one takes, seconds; nothing when there was none.
    pub mean_s: Option<f64>,
    /// Within how long 99 of 100 end, seconds, to the next bound of the histogram; nothing when there was none, or it is longer than every bound.
    pub slow_s: Option<f64>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Calls per second.
    pub calls: f64,
    /// Of them, those that fail.
    pub errors: f64,
    /// Content read, bytes per second.
    pub read: f64,
    /// Content written, bytes per second.
    pub written: f64,
    /// How long a call takes, seconds, without those that wait for others.
    pub mean_s: Option<f64>,
    /// As [`KindRate::slow_s`], of all calls.
    pub slow_s: Option<f64>,
    /// Processors that are busy with it.
    pub cpu: f64,
    /// By kind, those with most calls first.
    pub kinds: Vec<KindRate>,
    /// By client.
    pub clients: BTreeMap<String, Traffic>,
}

/// By how much a counter has grown; one that was set back began anew.
fn grown(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

impl Rates {
    /// What was done between `before` and `now`, which are `apart_s` seconds apart; nothing when the server was started in between.
    pub fn between(before: &Sample, now: &Sample, apart_s: f64) -> Option<Rates> {
        if apart_s <= 0.0 || before.started_s != now.started_s {
            return None;
        }
        let mut rates = Rates {
            read: grown(before.read, now.read) / apart_s,
            written: grown(before.written, now.written) / apart_s,
            cpu: grown(before.cpu_s, now.cpu_s) / apart_s,
            ..Rates::default()
        };
        let (nothing, mut all) = (KindCount::default(), KindCount::default());
        for (key, count) in &now.kinds {
            let new = difference(before.kinds.get(key).unwrap_or(&nothing), count);
            if new.count <= 0.0 {
                continue;
            }
            rates.calls += new.count / apart_s;
            rates.errors += new.errors / apart_s;
            if !WAITING.contains(&key.1.as_str()) {
                add(&mut all, &new);
            }
            rates.kinds.push(KindRate {
                service: key.0.clone(),
                kind: key.1.clone(),
                per_s: new.count / apart_s,
                errors_per_s: new.errors / apart_s,
                mean_s: mean(&new),
                slow_s: slow(&new),
            });
        }
        rates.kinds.sort_by(|a, b| b.per_s.total_cmp(&a.per_s));
        (rates.mean_s, rates.slow_s) = (mean(&all), slow(&all));
        for (name, traffic) in &now.clients {
            let earlier = before.clients.get(name).copied().unwrap_or_default();
            let rate = Traffic {
                calls: grown(earlier.calls, traffic.calls) / apart_s,
                read: grown(earlier.read, traffic.read) / apart_s,
                written: grown(earlier.written, traffic.written) / apart_s,
            };
            rates.clients.insert(name.clone(), rate);
        }
        Some(rates)
    }
}

fn difference(before: &KindCount, now: &KindCount) -> KindCount {
    let earlier =
        |bound: f64| before.within.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
    KindCount {
        within: now.within.iter().map(|(bound, count)| (*bound, grown(earlier(*bound), *count))).collect(),
        count: grown(before.count, now.count),
        took_s: grown(before.took_s, now.took_s),
        errors: grown(before.errors, now.errors),
    }
}

fn add(sum: &mut KindCount, more: &KindCount) {
    for (bound, count) in &more.within {
        match sum.within.iter_mut().find(|(known, _)| known == bound) {
            Some((_, known)) => *known += count,
            None => sum.within.push((*bound, *count)),
        }
    }
    sum.count += more.count;
    sum.took_s += more.took_s;
}

fn mean(count: &KindCount) -> Option<f64> {
    (count.count > 0.0).then(|| count.took_s / count.count)
}

fn slow(count: &KindCount) -> Option<f64> {
    let needed = count.count * SLOW_SHARE;
    let fits = count.within.iter().filter(|(_, within)| count.count > 0.0 && *within >= needed);
    fits.map(|(bound, _)| *bound).min_by(f64::total_cmp)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn sample(count: f64, fast: f64) -> Sample {
        let kind = KindCount {
            within: vec![(0.001, fast), (0.01, count)],
            count,
            took_s: count / 100.0,
            errors: 1.0,
        };
        Sample {
            started_s: 7.0,
            read: count * 10.0,
            kinds: [(("meta".to_owned(), "create".to_owned()), kind)].into_iter().collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn rates_are_what_has_grown_by_the_time_between() {
        let rates = Rates::between(&sample(100.0, 100.0), &sample(300.0, 298.0), 2.0).unwrap();
        assert_eq!((rates.calls, rates.read, rates.errors), (100.0, 1000.0, 0.0));
        assert!((rates.mean_s.unwrap() - 0.01).abs() < 1e-9);
        // 198 of 200 are fast: 99 of 100.
        assert_eq!(rates.slow_s, Some(0.001));
        let rates = Rates::between(&sample(100.0, 100.0), &sample(300.0, 290.0), 2.0).unwrap();
        assert_eq!(rates.kinds[0].slow_s, Some(0.01));
    }

    #[test]
    fn a_server_that_was_started_anew_has_no_rates_yet() {
        let started = Sample { started_s: 8.0, ..sample(300.0, 298.0) };
        assert_eq!(Rates::between(&sample(100.0, 100.0), &started, 2.0), None);
        assert_eq!(Rates::between(&sample(1.0, 1.0), &sample(2.0, 2.0), 0.0), None);
        let idle = Rates::between(&sample(5.0, 5.0), &sample(5.0, 5.0), 2.0).unwrap();
        assert_eq!((idle.calls, idle.mean_s, idle.slow_s, idle.kinds.len()), (0.0, None, None, 0));
    }
}
