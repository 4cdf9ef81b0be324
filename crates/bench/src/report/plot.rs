//! Curves as SVG: numbers of threads on a scale of powers of two, rates on a linear or a logarithmic one, bars for the spread.
//!
//! Curves differ in colour, in marks and in their dashes, and each has its name at its end: no colour is needed to read them.

use super::html::escaped;
use super::number::short;
use std::fmt::Write;

/// What lies along the bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Threads, in powers of two.
    Threads,
    /// Per cent of a file system.
    Percent,
}

/// A point with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// Place along the bottom.
    pub at: f64,
    /// Mean.
    pub mean: f64,
    /// One standard deviation.
    pub deviation: f64,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What stands at its end.
    pub name: String,
    /// From left to right.
    pub marks: Vec<Mark>,
}

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// For those who see it and those who hear it.
    pub title: String,
    /// What it shows, in a sentence.
    pub description: String,
    /// What the rates are told in.
    pub unit: String,
    /// What lies along the bottom.
    pub along: Along,
    /// Whether each step upwards is ten times as much.
    pub is_log: bool,
    /// At most six that can be told apart.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 48.0;
/// Between two names at the ends of curves.
const NAME_STEP: f64 = 15.0;
/// Colours and marks there are.
const STYLES: usize = 6;
const DASHES: [&str; STYLES] = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2 1 2"];

/// Where values lie on the picture.
struct Scale {
    least: f64,
    most: f64,
    is_log: bool,
}

impl Scale {
    fn part(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_log { value.max(self.least).log10() } else { value };
        let width = of(self.most) - of(self.least);
        if width > 0.0 { (of(value) - of(self.least)) / width } else { 0.5 }
    }

    /// From 0 in round steps, or from one power of ten to another.
    fn of(values: &[f64], is_log: bool) -> Scale {
        let most = values.iter().copied().fold(0.0, f64::max).max(1e-9);
        if !is_log {
            let step = step(most);
            return Scale { least: 0.0, most: (most / step).ceil() * step, is_log };
        }
        let least = values.iter().copied().filter(|value| *value > 0.0).fold(most, f64::min);
        let (low, high) = (least.log10().floor(), most.log10().ceil());
        let high = if high > low { high } else { low + 1.0 };
        Scale { least: 10f64.powf(low), most: 10f64.powf(high), is_log }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let (low, high) = (self.least.log10().round() as i32, self.most.log10().round() as i32);
            let few = high - low <= 2;
            let between: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let all =
                (low..=high).flat_map(|power| between.iter().map(move |digit| digit * 10f64.powi(power)));
            return all.filter(|tick| *tick <= self.most * 1.000_001).collect();
        }
        let step = step(self.most);
        (0..=(self.most / step).round() as u32).map(|number| f64::from(number) * step).collect()
    }
}

/// 1, 2 or 5 times a power of ten: four to ten of them are `most`.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / 4.0).log10().floor());
    let digit = most / 4.0 / power;
    power
        * if digit >= 5.0 {
            5.0
        } else if digit >= 2.0 {
            2.0
        } else {
            1.0
        }
}

impl Plot {
    fn across(&self) -> Vec<f64> {
        let mut all: Vec<f64> =
            self.series.iter().flat_map(|series| series.marks.iter().map(|mark| mark.at)).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }

    fn x(&self, at: f64, all: &[f64]) -> f64 {
        let of = |value: f64| if self.along == Along::Threads { value.max(1.0).log2() } else { value };
        let (least, most) = (all.first().copied().unwrap_or(1.0), all.last().copied().unwrap_or(1.0));
        let width = of(most) - of(least);
        let part = if width > 0.0 { (of(at) - of(least)) / width } else { 0.5 };
        // Marks do not lie on the axis.
        LEFT + 14.0 + part * (WIDTH - LEFT - RIGHT - 28.0)
    }

    /// The picture; `id` is that of no other on the page.
    pub fn svg(&self, id: &str) -> String {
        let all = self.across();
        let marks = || self.series.iter().flat_map(|series| &series.marks);
        let values: Vec<f64> = marks()
            .flat_map(|mark| [mark.mean + mark.deviation, if self.is_log { mark.mean } else { 0.0 }])
            .collect();
        let scale = Scale::of(&values, self.is_log);
        let y = |value: f64| HEIGHT - BOTTOM - scale.part(value).clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\n\
             <title id=\"{id}-t\">{}</title>\n<desc id=\"{id}-d\">{}</desc>\n",
            escaped(&self.title),
            escaped(&self.description)
        );
        let mut add = |text: String| out.push_str(&text);
        let unit = format!("{}{}", self.unit, if self.is_log { " (logarithmic)" } else { "" });
        add(format!(
            "<text class=\"soft\" x=\"{LEFT}\" y=\"12\" text-anchor=\"start\">{}</text>\n",
            escaped(&unit)
        ));
        for tick in scale.ticks() {
            let at = y(tick);
            add(format!(
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n",
                WIDTH - RIGHT
            ));
            let text = short(tick);
            add(format!(
                "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>\n",
                LEFT - 8.0,
                at + 4.0
            ));
        }
        let bottom = HEIGHT - BOTTOM;
        add(format!(
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\n",
            WIDTH - RIGHT
        ));
        for at in &all {
            let (x, name) = (self.x(*at, &all), short(*at));
            add(format!(
                "<text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>\n",
                bottom + 18.0
            ));
        }
        let along = if self.along == Along::Threads { "threads" } else { "% of the file system in use" };
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        add(format!(
            "<text class=\"soft\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{along}</text>\n",
            bottom + 38.0
        ));
        for (number, series) in self.series.iter().enumerate() {
            add(self.curve(series, number % STYLES, &all, &y));
        }
        add(self.names(&all, &y));
        out + "</svg>\n"
    }

    fn curve(&self, series: &Series, style: usize, all: &[f64], y: &dyn Fn(f64) -> f64) -> String {
        let mut out = String::new();
        let class = style + 1;
        let points: Vec<String> = series
            .marks
            .iter()
            .map(|mark| format!("{:.1},{:.1}", self.x(mark.at, all), y(mark.mean)))
            .collect();
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "<polyline class=\"curve s{class}\" stroke-dasharray=\"{}\" points=\"{}\"/>",
            DASHES[style],
            points.join(" ")
        );
        for mark in &series.marks {
            let (x, middle) = (self.x(mark.at, all), y(mark.mean));
            let (high, low) = (y(mark.mean + mark.deviation), y((mark.mean - mark.deviation).max(0.0)));
            if mark.deviation > 0.0 {
                let _ = writeln!(
                    out,
                    "<path class=\"bar s{class}\" d=\"M{x:.1} {high:.1}V{low:.1}M{:.1} {high:.1}h8M{:.1} {low:.1}h8\"/>",
                    x - 4.0,
                    x - 4.0
                );
            }
            let _ = writeln!(out, "<path class=\"f{class}\" d=\"{}\"/>", shape(style, x, middle));
        }
        out
    }

    /// Each name at the end of its curve, moved apart where they would lie on each other.
    fn names(&self, all: &[f64], y: &dyn Fn(f64) -> f64) -> String {
        let ends = self.series.iter().enumerate().filter_map(|(number, series)| {
            let last = series.marks.last()?;
            Some((y(last.mean), number, series))
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut places: Vec<f64> = ends.iter().map(|(at, ..)| *at).collect();
        for at in 1..places.len() {
            places[at] = places[at].max(places[at - 1] + NAME_STEP);
        }
        let most = HEIGHT - BOTTOM;
        let over = places.last().map_or(0.0, |last| (last - most).max(0.0));
        let mut below = f64::INFINITY;
        for place in places.iter_mut().rev() {
            *place = if over > 0.0 { place.min(below - NAME_STEP).min(most) } else { *place };
            below = *place;
        }
        let x = WIDTH - RIGHT + 10.0;
        let mut out = String::new();
        for ((at, number, series), place) in ends.iter().zip(places) {
            let class = number % STYLES + 1;
            let from = series.marks.last().map_or(x, |mark| self.x(mark.at, all) + 7.0);
            let _ = writeln!(
                out,
                "<path class=\"ceiling s{class}\" d=\"M{from:.1} {at:.1}L{:.1} {place:.1}\"/>\n<path class=\"f{class}\" d=\"{}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x - 3.0,
                shape(number % STYLES, x + 3.0, place),
                x + 12.0,
                place + 4.0,
                escaped(&series.name)
            );
        }
        out
    }
}

/// A mark of its own for each style.
fn shape(style: usize, x: f64, y: f64) -> String {
    match style {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l5 8.5h-10z", y - 5.0),
        3 => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
        4 => format!("M{x:.1} {:.1}l5 -8.5h-10z", y + 5.0),
        _ => format!("M{:.1} {:.1}h10v4h-10z", x - 5.0, y - 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(is_log: bool) -> Plot {
        let series = |name: &str, factor: f64| Series {
            name: name.into(),
            marks: [1.0, 2.0, 4.0]
                .map(|at| Mark { at, mean: at * factor, deviation: factor / 10.0 })
                .to_vec(),
        };
        Plot {
            title: "t <&>".into(),
            description: "d".into(),
            unit: "ops/s".into(),
            along: Along::Threads,
            is_log,
            series: vec![series("create", 100.0), series("stat", 101.0), series("read", 30_000.0)],
        }
    }

    #[test]
    fn steps_are_round_and_reach_the_most() {
        for most in [0.7, 3.0, 12.0, 99.0, 1234.0, 5e6] {
            let scale = Scale::of(&[most], false);
            let ticks = scale.ticks();
            assert!((4..=11).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(*ticks.last().unwrap() >= most && scale.part(most) <= 1.0 && scale.part(0.0) == 0.0);
        }
        let scale = Scale::of(&[300.0, 2e6], true);
        assert_eq!((scale.least, scale.most), (100.0, 1e7));
        assert_eq!(scale.ticks().len(), 6);
        assert!(Scale::of(&[1000.0], true).most > 1000.0);
    }

    #[test]
    fn every_point_is_drawn_inside_and_every_curve_has_its_name_apart() {
        for is_log in [false, true] {
            let text = plot(is_log).svg("p");
            assert_eq!(text.matches("<polyline").count(), 3);
            assert_eq!(text.matches("class=\"bar").count(), 9);
            assert!(text.contains("t &lt;&amp;&gt;") && text.contains("aria-labelledby=\"p-t p-d\""));
            let heights: Vec<f64> = ["create", "stat", "read"]
                .iter()
                .map(|name| {
                    let before = text.split(&format!(">{name}</text>")).next().unwrap();
                    before.rsplit("y=\"").next().unwrap().split('"').next().unwrap().parse().unwrap()
                })
                .collect();
            for (one, other) in [(0, 1), (1, 2), (0, 2)] {
                assert!((heights[one] - heights[other]).abs() >= NAME_STEP - 0.2, "{heights:?}");
            }
            assert!(heights.iter().all(|height| (0.0..HEIGHT).contains(height)), "{heights:?}");
        }
    }

    #[test]
    fn a_single_point_and_none_are_drawn_too() {
        let mut one = plot(true);
        one.series.truncate(1);
        one.series[0].marks.truncate(1);
        assert!(one.svg("p").contains("<polyline"));
        one.series.clear();
        assert!(one.svg("p").ends_with("</svg>\n"));
    }
}
