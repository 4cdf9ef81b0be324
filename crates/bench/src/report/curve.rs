//! A rate over numbers of threads, and what follows from it: peak, sustained rate, part of the ceiling, bottleneck.
//!
//! **Peak** is the highest mean over the repetitions, with the fewest threads that reach it.
//!
//! **Sustained** is the lowest mean of all numbers of threads from the peak's on: what is left when more threads come than the best number. The
//! papers have both columns (`004-24` to `004-34`, `002-15`) without saying how the second is found; theirs passes over single dips
//! (`004-25`: 20.5 GB/s sustained, with 18.5 at 128 threads), this one does not. When the peak is at the most threads, nothing was
//! measured beyond it, and that is said.

use crate::ceiling::{Against, Ceilings};
use crate::figure::{Spread, Summary, summarize};
use crate::run::{Measured, Part, Tool};
use crate::sample::Load;
use crate::sample::bottleneck::{Bottleneck, Case, Growth, Watched};
use serde::Serialize;

/// A point that is so much above the one before still grows.
const GROWTH_PART: f64 = 1.1;

/// One number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Mean, deviation, latencies and cautions.
    pub summary: Summary,
    /// The rate of each repetition, in the unit of the part per second.
    pub rates: Vec<f64>,
    /// Whether the figure is one of a cache: told, but not drawn and never a peak.
    pub is_spoiled: bool,
    /// What the machine did meanwhile, if it measured alone.
    pub load: Option<Load>,
    /// What each agent's machine did, in their order, where there were several. Not written: it is the mean of what the figures tell, and is much
    /// where there are many agents.
    #[serde(skip)]
    pub loads: Vec<Option<Load>>,
}

/// One phase of one part by one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// Which part.
    pub part: Part,
    /// Which program.
    pub tool: Tool,
    /// How full the file system was made before, percent.
    pub fill_percent: Option<u8>,
    /// Which phase, as `random read`.
    pub what: String,
    /// By threads, ascending.
    pub points: Vec<CurvePoint>,
    /// Place of the peak among the points; nothing if all of them are of a cache.
    pub peak: Option<usize>,
    /// The sustained rate.
    pub sustained: Option<f64>,
    /// Whether nothing was measured beyond the peak.
    pub is_open: bool,
    /// The ceiling.
    pub against: Option<Against>,
    /// What limits it at its peak.
    pub bottleneck: Bottleneck,
}

impl CurvePoint {
    /// Mean, deviation, least and greatest, in the unit of `part`.
    pub fn spread(&self, part: Part) -> Spread {
        part.unit().spread(&self.summary)
    }

    /// What is known of the machines that measured it.
    pub fn watched(&self) -> Vec<Watched<'_>> {
        let agents = self.loads.iter().enumerate();
        let agents =
            agents.filter_map(|(at, load)| Some(Watched { agent: Some(at + 1), load: load.as_ref()? }));
        self.load.iter().map(|load| Watched { agent: None, load }).chain(agents).collect()
    }
}

impl Curve {
    /// The point of the peak.
    pub fn peak_point(&self) -> Option<&CurvePoint> {
        self.points.get(self.peak?)
    }

    /// The rate there.
    pub fn peak_rate(&self) -> Option<f64> {
        Some(self.peak_point()?.spread(self.part).mean)
    }

    /// Which part of the ceiling it is.
    pub fn of_ceiling(&self) -> Option<f64> {
        self.part_of_ceiling(self.peak_rate()?)
    }

    /// Which part of the ceiling `rate` is; nothing if none is known.
    pub fn part_of_ceiling(&self, rate: f64) -> Option<f64> {
        let against = self.against.as_ref().filter(|against| against.rate > 0.0)?;
        Some(rate / against.rate)
    }

    /// What it is called beside others of its part.
    pub fn name(&self) -> String {
        let what =
            self.what.strip_prefix("sequential ").or(self.what.strip_prefix("random ")).unwrap_or(&self.what);
        if self.tool == Tool::Ashlar { what.to_owned() } else { format!("{what} ({})", self.tool) }
    }
}

/// All curves, in the order of parts, programs and phases.
pub fn curves(measured: &[Measured], ceilings: &Ceilings) -> Vec<Curve> {
    let mut keys: Vec<(Option<u8>, Part, Tool, &str)> = Vec::new();
    for one in measured {
        let key = (one.fill_percent, one.part, one.tool, one.figure.what.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    // Phases of one part stay in the order they were done.
    keys.sort_by_key(|(fill, part, tool, _)| (*fill, *part, *tool));
    keys.into_iter().map(|key| curve(key, measured, ceilings)).collect()
}

fn curve(
    (fill_percent, part, tool, what): (Option<u8>, Part, Tool, &str),
    measured: &[Measured],
    ceilings: &Ceilings,
) -> Curve {
    let same: Vec<&Measured> = measured
        .iter()
        .filter(|one| {
            (one.fill_percent, one.part, one.tool, one.figure.what.as_str())
                == (fill_percent, part, tool, what)
        })
        .collect();
    let figures: Vec<_> = same.iter().map(|one| one.figure.clone()).collect();
    let mut points: Vec<CurvePoint> =
        summarize(&figures).into_iter().map(|summary| point(part, summary, &same)).collect();
    points.sort_by_key(|point| point.summary.threads);
    let mean = |at: usize| points[at].spread(part).mean;
    let honest: Vec<usize> = (0..points.len()).filter(|at| !points[*at].is_spoiled).collect();
    let peak = honest.iter().copied().reduce(|best, at| if mean(at) > mean(best) { at } else { best });
    let beyond = |peak: usize| honest.iter().copied().filter(move |at| *at >= peak);
    let sustained = peak.and_then(|peak| beyond(peak).map(mean).reduce(f64::min));
    let is_open = peak.is_none_or(|peak| beyond(peak).count() < 2);
    let against = ceilings.of(part, what);
    let growth = match (peak, honest.len()) {
        (None, _) | (_, 0 | 1) => Growth::NotKnown,
        (Some(peak), _) if !is_open || mean(peak) < GROWTH_PART * mean(peak.saturating_sub(1)) => {
            Growth::Level
        }
        _ => Growth::Growing,
    };
    let under_way = |threads: usize| threads as u64 * u64::from(part.depth());
    let of_devices = against.as_ref().filter(|against| against.is_of_devices && against.rate > 0.0);
    let of_devices = of_devices.zip(peak).map(|(against, peak)| mean(peak) / against.rate);
    let at_peak = peak.map(|peak| &points[peak]);
    let watched = at_peak.map_or_else(Vec::new, CurvePoint::watched);
    let case = Case {
        watched: &watched,
        of_devices,
        growth,
        p50_us: at_peak.map_or(0.0, |point| point.summary.p50_us),
        under_way: at_peak.map_or(0, |point| under_way(point.summary.threads)),
    };
    let bottleneck = Bottleneck::of(&case);
    Curve {
        part,
        tool,
        fill_percent,
        what: what.to_owned(),
        points,
        peak,
        sustained,
        is_open,
        against,
        bottleneck,
    }
}

fn point(part: Part, summary: Summary, same: &[&Measured]) -> CurvePoint {
    let own = || same.iter().filter(|one| one.figure.threads == summary.threads);
    let rates = own().map(|one| part.unit().rate(&one.figure)).collect();
    let loads: Vec<&Load> = own().filter_map(|one| one.load.as_ref()).collect();
    let agents = own().map(|one| one.loads.len()).max().unwrap_or(0);
    let of_agent = |at: usize| {
        let loads: Vec<&Load> = own().filter_map(|one| one.loads.get(at)?.as_ref()).collect();
        Load::mean(&loads)
    };
    let is_spoiled = summary.cautions.iter().any(|caution| caution.is_spoiled());
    let (load, loads) = (Load::mean(&loads), (0..agents).map(of_agent).collect());
    CurvePoint { rates, is_spoiled, load, loads, summary }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{measured, report};
    use super::*;
    use crate::ceiling::tests::ceilings;
    use crate::figure::Caution;
    use crate::sample::bottleneck::Limit;

    fn of(rates: &[(usize, f64)]) -> Curve {
        let all: Vec<Measured> = rates
            .iter()
            .map(|(threads, rate)| measured(Part::SequentialNN, "sequential write", *threads, 1, *rate))
            .collect();
        curves(&all, &ceilings()).remove(0)
    }

    #[test]
    fn the_peak_is_the_highest_mean_and_sustained_the_lowest_from_there_on() {
        let curve = of(&[(1, 100.0), (2, 900.0), (4, 700.0), (8, 800.0)]);
        let mib = f64::from(1 << 20);
        assert_eq!(
            (curve.peak, curve.peak_rate(), curve.sustained),
            (Some(1), Some(900.0 * mib), Some(700.0 * mib))
        );
        assert!(!curve.is_open);
        let growing = of(&[(1, 100.0), (2, 200.0)]);
        assert_eq!((growing.sustained, growing.is_open), (Some(200.0 * mib), true));
        assert!(growing.bottleneck.also.iter().any(|text| text.contains("still grew")));
        let level = of(&[(1, 100.0), (2, 101.0)]);
        assert!(level.is_open && level.bottleneck.also.is_empty(), "{:?}", level.bottleneck);
        assert!(of(&[(4, 100.0)]).is_open);
    }

    #[test]
    fn a_figure_of_a_cache_is_never_a_peak() {
        let mut all = vec![
            measured(Part::SequentialNN, "sequential read", 1, 1, 100.0),
            measured(Part::SequentialNN, "sequential read", 2, 1, 9000.0),
        ];
        all[1].figure.cautions.push(Caution::WasCached(0.5));
        let curve = curves(&all, &ceilings()).remove(0);
        assert_eq!((curve.peak, curve.points[1].is_spoiled), (Some(0), true));
        all.remove(0);
        let curve = curves(&all, &ceilings()).remove(0);
        assert_eq!((curve.peak, curve.peak_rate(), curve.sustained), (None, None, None));
    }

    #[test]
    fn the_loads_of_agents_are_kept_apart_and_the_most_loaded_is_named() {
        let mut all: Vec<Measured> = (1..=2)
            .map(|repetition| measured(Part::SequentialNN, "sequential write", 4, repetition, 100.0))
            .collect();
        for (one, busy) in all.iter_mut().zip([0.95, 0.99]) {
            let load = one.load.take();
            let calm = load.clone().map(|load| Load { busy: 0.5, busiest: 0.5, ..load });
            let most = load.map(|load| Load { busy, busiest: 1.0, ..load });
            one.loads = vec![calm, None, most];
        }
        all[0].loads[0] = None;
        let curve = curves(&all, &ceilings()).remove(0);
        let told: Vec<(Option<usize>, f64)> =
            curve.points[0].watched().iter().map(|one| (one.agent, one.load.busy)).collect();
        assert_eq!(told, [(Some(1), 0.5), (Some(3), 0.97)]);
        assert_eq!(curve.bottleneck.evidence, "processors of agent 3: all 2 at 97 %, mean of 2 agents 74 %");
    }

    #[test]
    fn repetitions_become_one_point_with_its_ceiling_and_bottleneck() {
        let all = report().curves;
        let names: Vec<(Part, String)> = all.iter().map(|curve| (curve.part, curve.name())).collect();
        assert_eq!(names[0], (Part::SequentialNN, "write".into()));
        assert_eq!(names[3], (Part::Metadata0, "stat".into()));
        let write = &all[0];
        assert_eq!((write.points.len(), write.points[1].rates.len()), (3, 3));
        assert!((write.of_ceiling().unwrap() - 902.0 * f64::from(1 << 20) / 2e9).abs() < 1e-6);
        assert_eq!(write.bottleneck.limit, Limit::Processors);
        assert!(all[2].against.is_none());
    }
}
