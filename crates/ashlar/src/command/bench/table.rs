//! The table that a person reads.

use crate::terminal::say;
use ashlar_bench::figure::{Caution, Figure, Summary, summarize};
use ashlar_bench::report::number::{in_unit, unit_name};
use ashlar_bench::run::Unit;

/// Rows as they come, and at the end what must be said with them.
pub struct Table {
    unit: Unit,
    allows_cached: bool,
    has_head: bool,
    cautions: Vec<Caution>,
    hidden: usize,
}

impl Table {
    pub fn new(unit: Unit, allows_cached: bool) -> Table {
        Table { unit, allows_cached, has_head: false, cautions: Vec::new(), hidden: 0 }
    }

    /// Prints a row for each sort of `figures`.
    pub fn show(&mut self, figures: &[Figure]) {
        if figures.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.has_head, true) {
            let rate = unit_name(self.unit);
            say(format!(
                "{:>7}  {:<16} {rate:>12} {:>7} {:>12} {:>10} {:>10}",
                "threads", "phase", "+- %", "least", "p50 us", "p99 us"
            ));
        }
        for summary in summarize(figures) {
            let marks = self.marks(&summary);
            say(format!("{}{marks}", self.row(&summary)));
        }
    }

    fn row(&mut self, summary: &Summary) -> String {
        let head = format!("{:>7}  {:<16}", summary.threads, summary.what);
        if summary.cautions.iter().any(|caution| caution.is_spoiled()) && !self.allows_cached {
            self.hidden += 1;
            return format!("{head} {:>12} {:>7} {:>12} {:>10} {:>10}", "-", "-", "-", "-", "-");
        }
        let spread = self.unit.spread(summary);
        let percent = if spread.mean > 0.0 { spread.deviation / spread.mean * 100.0 } else { 0.0 };
        let (mean, least) = (in_unit(spread.mean, self.unit), in_unit(spread.least, self.unit));
        let (p50, p99) = (summary.p50_us, summary.p99_us);
        format!("{head} {mean:>12.0} {percent:>7.1} {least:>12.0} {p50:>10.1} {p99:>10.1}")
    }

    /// The numbers of what must be said, as ` [1,2]`.
    fn marks(&mut self, summary: &Summary) -> String {
        let mut numbers = Vec::new();
        for caution in &summary.cautions {
            let same = |known: &Caution| std::mem::discriminant(known) == std::mem::discriminant(caution);
            let at = self.cautions.iter().position(same).unwrap_or_else(|| {
                self.cautions.push(*caution);
                self.cautions.len() - 1
            });
            numbers.push((at + 1).to_string());
        }
        if numbers.is_empty() { String::new() } else { format!(" [{}]", numbers.join(",")) }
    }

    /// Prints what the marks of the rows mean.
    pub fn explain(&self) {
        for (number, caution) in self.cautions.iter().enumerate() {
            say(format!("[{}] {}", number + 1, caution.text()));
        }
        if self.hidden > 0 {
            say(
                "Figures of a cache are not shown: measure more data, or with --direct, or say --allow-cached.",
            );
        }
    }
}
