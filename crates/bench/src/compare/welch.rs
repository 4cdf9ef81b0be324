//! Welch's test: whether two samples of different spread have different means (B. L. Welch, "The generalization of Student's problem when
//! several different population variances are involved", Biometrika 34, 1947).
//!
//! It takes the repetitions as drawn from normal distributions. With three of each there is no way to check that, and only large changes can be
//! told: a permutation test of three against three could never fall below 10 %. Its answer is a help to judge, no proof.

use super::CHANCE;
use crate::figure::Spread;
use serde::Serialize;

/// What the test says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Welch {
    /// How many standard errors the means lie apart.
    pub t: f64,
    /// Degrees of freedom.
    pub freedom: f64,
    /// How likely chance alone makes means lie that far apart, in either direction.
    pub p: f64,
    /// The least change, as a part of the first mean, that would have been told from chance.
    pub detectable: f64,
}

impl Welch {
    /// Of two samples; nothing if one has fewer than two values.
    pub fn of(one: &[f64], other: &[f64]) -> Option<Welch> {
        if one.len() < 2 || other.len() < 2 {
            return None;
        }
        let (first, second) = (Spread::of(one), Spread::of(other));
        let error = |spread: &Spread, count: usize| spread.deviation.powi(2) / count as f64;
        let (first_error, second_error) = (error(&first, one.len()), error(&second, other.len()));
        let both = first_error + second_error;
        let mean = first.mean.abs().max(f64::MIN_POSITIVE);
        if both <= 0.0 {
            // Nothing varies: any difference is one.
            let p = if first.mean == second.mean { 1.0 } else { 0.0 };
            let freedom = (one.len() + other.len() - 2) as f64;
            return Some(Welch { t: 0.0, freedom, p, detectable: 0.0 });
        }
        let parts =
            first_error.powi(2) / (one.len() - 1) as f64 + second_error.powi(2) / (other.len() - 1) as f64;
        let freedom = both.powi(2) / parts;
        let t = (second.mean - first.mean) / both.sqrt();
        let detectable = critical(freedom) * both.sqrt() / mean;
        Some(Welch { t, freedom, p: two_sided(t, freedom), detectable })
    }
}

/// How likely Student's t with so much freedom is farther from 0 than `t` (Abramowitz and Stegun 26.7.1 and 26.5.27).
fn two_sided(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The t beyond which chance is rarer than [`CHANCE`].
fn critical(freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e4);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if two_sided(middle, freedom) > CHANCE { low = middle } else { high = middle }
    }
    high
}

/// The regularized incomplete beta function, by its continued fraction (DLMF 8.17.22) with the method of Lentz.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // It converges fast on one side only; the other is its mirror image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (a * x.ln() + b * (1.0 - x).ln() + log_gamma(a + b) - log_gamma(a) - log_gamma(b)).exp() / a;
    let small = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut d = 1.0 / small(1.0 - (a + b) * x / (a + 1.0));
    let (mut c, mut fraction) = (1.0, d);
    for step in 1..300 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / small(1.0 + term * d);
            c = small(1.0 + term / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * fraction
}

/// The logarithm of the gamma function for positive numbers: Stirling's series (DLMF 5.11.1) after moving up to where it is exact enough.
fn log_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_that_of_the_tables() {
        // Student's t, two-sided 5 %: any table.
        for (freedom, wanted) in [(1.0, 12.706), (2.0, 4.303), (4.0, 2.776), (10.0, 2.228), (30.0, 2.042)] {
            assert!((critical(freedom) - wanted).abs() < 1e-3, "{freedom}: {}", critical(freedom));
        }
        // One degree of freedom is Cauchy's: half of it lies beyond 1.
        assert!((two_sided(1.0, 1.0) - 0.5).abs() < 1e-12);
        assert!((log_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
        assert!((log_gamma(5.0) - 24f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn an_example_worked_by_hand_comes_out() {
        // Means 20 and 30, variances 4 and 16, three each: error sqrt(20/3), t = 10 / 2.582.
        let told = Welch::of(&[18.0, 20.0, 22.0], &[26.0, 30.0, 34.0]).unwrap();
        assert!((told.t - 3.873).abs() < 1e-3 && (told.freedom - 2.941).abs() < 1e-3, "{told:?}");
        assert!(told.p > 0.02 && told.p < 0.05, "{told:?}");
        assert!(told.detectable > 0.3 && told.detectable < 0.5, "{told:?}");
    }

    #[test]
    fn too_few_and_constant_values_are_no_trouble() {
        assert!(Welch::of(&[1.0], &[1.0, 2.0]).is_none());
        assert_eq!(Welch::of(&[1.0, 1.0], &[1.0, 1.0]).unwrap().p, 1.0);
        assert_eq!(Welch::of(&[1.0, 1.0], &[2.0, 2.0]).unwrap().p, 0.0);
        let far = Welch::of(&[1.0, 1.001, 1.002], &[100.0, 100.1, 100.2]).unwrap();
        assert!(far.p < 1e-4 && far.p >= 0.0);
    }
}
