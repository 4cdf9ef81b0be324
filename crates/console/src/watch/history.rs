//! Figures over time: the last minutes finely, the last day coarsely, in rings that never grow.

use std::collections::VecDeque;
use std::time::Duration;

/// Time between two fine figures.
pub const FINE_STEP: Duration = Duration::from_secs(2);
/// Time between two coarse ones.
pub const COARSE_STEP: Duration = Duration::from_secs(60);
/// LIMIT: fine figures that are kept: ten minutes.
pub const FINE_MAX: usize = 300;
/// LIMIT: coarse figures that are kept: a day.
pub const COARSE_MAX: usize = 24 * 60;
/// Fine figures that a coarse one is the mean of.
const FINE_PER_COARSE: usize = (COARSE_STEP.as_secs() / FINE_STEP.as_secs()) as usize;

/// How far back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Ten minutes.
    Minutes,
    /// A day.
    Day,
}

/// One figure over time. At most 7 KiB, once it is full.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    fine: VecDeque<f32>,
    coarse: VecDeque<f32>,
    /// Sum and number of the figures, and of all turns, since the last coarse one.
    sum: f64,
    known: usize,
    turns: usize,
}

impl Ring {
    /// The next figure; nothing where it is not known.
    pub fn push(&mut self, figure: Option<f64>) {
        push(&mut self.fine, figure, FINE_MAX);
        if let Some(figure) = figure {
            self.sum += figure;
            self.known += 1;
        }
        self.turns += 1;
        if self.turns == FINE_PER_COARSE {
            let mean = (self.known > 0).then(|| self.sum / self.known as f64);
            push(&mut self.coarse, mean, COARSE_MAX);
            (self.sum, self.known, self.turns) = (0.0, 0, 0);
        }
    }

    /// Whether any figure that is kept is known.
    pub fn has_any(&self) -> bool {
        self.fine.iter().chain(&self.coarse).any(|figure| figure.is_finite())
    }

    /// The figures, the newest last.
    pub fn figures(&self, span: Span) -> Vec<Option<f32>> {
        let ring = match span {
            Span::Minutes => &self.fine,
            Span::Day => &self.coarse,
        };
        ring.iter().map(|figure| figure.is_finite().then_some(*figure)).collect()
    }
}

fn push(ring: &mut VecDeque<f32>, figure: Option<f64>, max: usize) {
    if ring.len() == max {
        ring.pop_front();
    }
    ring.push_back(figure.map_or(f32::NAN, |figure| figure as f32));
}

/// The figures of a server, of a client or of the whole file system.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Calls per second.
    pub calls: Ring,
    /// Content read, bytes per second.
    pub read: Ring,
    /// Content written, bytes per second.
    pub written: Ring,
    /// How long a call takes, seconds.
    pub mean_s: Ring,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_keep_the_newest_and_never_grow() {
        let mut ring = Ring::default();
        for turn in 0..FINE_PER_COARSE * (COARSE_MAX + 7) {
            ring.push((turn % 2 == 0).then_some((turn / FINE_PER_COARSE) as f64));
        }
        let (fine, coarse) = (ring.figures(Span::Minutes), ring.figures(Span::Day));
        assert_eq!((fine.len(), coarse.len()), (FINE_MAX, COARSE_MAX));
        assert_eq!(fine[FINE_MAX - 2..], [Some((COARSE_MAX + 6) as f32), None]);
        assert_eq!((coarse[0], coarse[COARSE_MAX - 1]), (Some(7.0), Some((COARSE_MAX + 6) as f32)));
        assert!(ring.fine.capacity() <= 2 * FINE_MAX && ring.coarse.capacity() <= 2 * COARSE_MAX);
    }

    #[test]
    fn a_minute_in_which_nothing_was_known_stays_unknown() {
        let mut ring = Ring::default();
        (0..FINE_PER_COARSE).for_each(|_| ring.push(None));
        assert_eq!(ring.figures(Span::Day), [None]);
    }
}
