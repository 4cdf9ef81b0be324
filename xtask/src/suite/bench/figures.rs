//! Figures of several contestants, one per round, and what is made of them: medians, spreads, ratios taken round by round.

use std::collections::BTreeMap;

use serde_json::Value;

/// Contestant to one number per round.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures(BTreeMap<String, Vec<f64>>);

impl Figures {
    pub(super) fn push(&mut self, contestant: &str, figure: f64) {
        self.0.entry(contestant.to_owned()).or_default().push(figure);
    }

    pub(super) fn of(&self, contestant: &str) -> &[f64] {
        self.0.get(contestant).map_or(&[], Vec::as_slice)
    }

    pub(super) fn median(&self, contestant: &str) -> f64 {
        median(self.of(contestant))
    }

    /// `contestant` / `reference` in each round: neighbours in time share the noise of the machine.
    pub(super) fn ratios(&self, contestant: &str, reference: &str) -> Vec<f64> {
        ratios(self.of(contestant), self.of(reference))
    }

    pub(super) fn json(&self) -> Value {
        serde_json::json!(self.0)
    }
}

/// Round by round. Rounds without a reference are left out.
pub(super) fn ratios(figures: &[f64], references: &[f64]) -> Vec<f64> {
    figures.iter().zip(references).filter(|(_, r)| **r > 0.0).map(|(figure, r)| figure / r).collect()
}

pub(super) fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(upper) = sorted.get(sorted.len() / 2) else { return 0.0 };
    if sorted.len() % 2 == 1 { *upper } else { f64::midpoint(sorted[sorted.len() / 2 - 1], *upper) }
}

/// Median and, in brackets, least and greatest; with so many digits after the point.
pub(super) fn show(figures: &[f64], digits: usize) -> String {
    if figures.is_empty() {
        return "-".to_owned();
    }
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let median = median(figures);
    if figures.len() == 1 {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({least:.digits$}-{greatest:.digits$})")
}

/// The same as percentages.
pub(super) fn show_percent(ratios: &[f64]) -> String {
    let percent: Vec<f64> = ratios.iter().map(|ratio| ratio * 100.0).collect();
    match percent.is_empty() {
        true => "-".to_owned(),
        false => format!("{} %", show(&percent, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_one_outlier() {
        assert_eq!(median(&[1.0, 100.0, 2.0]), 2.0);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(show(&[10.0, 30.0, 20.0], 0), "20 (10-30)");
        assert_eq!(show(&[1.25], 1), "1.2");
        assert_eq!((show(&[], 0), show_percent(&[])), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut figures = Figures::default();
        for (ours, theirs) in [(50.0, 100.0), (10.0, 20.0), (400.0, 800.0)] {
            figures.push("ours", ours);
            figures.push("theirs", theirs);
        }
        assert_eq!(figures.ratios("ours", "theirs"), [0.5, 0.5, 0.5]);
        assert_eq!(show_percent(&figures.ratios("ours", "theirs")), "50 (50-50) %");
        assert_eq!(figures.ratios("ours", "nobody"), [] as [f64; 0]);
        assert_eq!(ratios(&[1.0], &[0.0]), [] as [f64; 0]);
    }
}
