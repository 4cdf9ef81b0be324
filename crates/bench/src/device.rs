//! What the devices below a file system do without it: streams and random requests on each of them, alone and all at the same time.
//!
//! As dd and the StorageBench of the papers do: through the local file system of each target, past its cache, without network.

use crate::BenchError;
use crate::crew::Outcome;
use crate::data::{Action, DataFiles, DataPlan, Files, Order};
use crate::figure::{Figure, Spread};
use crate::place::Place;
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Record of streams, bytes.
const STREAM_RECORD_BYTES: u64 = 1 << 20;
/// Record of random requests, bytes.
const RANDOM_RECORD_BYTES: u64 = 4096;
/// All targets together do so much less than the sum of each alone when they share something that limits them.
const SHARING_PART: f64 = 0.9;

/// What is done on every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    /// Threads on each target, each with a file.
    pub threads: usize,
    /// Bytes on each target.
    pub bytes: u64,
    /// Requests of each thread under way at the same time.
    pub depth: u32,
    /// Seconds of random requests.
    pub random_seconds: u64,
    /// How often all of it is done.
    pub repetitions: u32,
}

/// What was done where.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFigure {
    /// The target by its place in the list; nothing for all of them at the same time.
    pub target: Option<usize>,
    /// What came out.
    #[serde(flatten)]
    pub figure: Figure,
}

impl DevicePlan {
    fn streams(&self) -> DataPlan {
        let thread_bytes =
            self.bytes / self.threads.max(1) as u64 / STREAM_RECORD_BYTES * STREAM_RECORD_BYTES;
        DataPlan {
            threads: self.threads,
            files: Files::PerThread,
            order: Order::Sequential,
            record_bytes: STREAM_RECORD_BYTES,
            thread_bytes,
            depth: self.depth,
            is_direct: true,
            counts_fsync: true,
            time_max: None,
        }
    }

    fn random(&self) -> DataPlan {
        DataPlan {
            order: Order::Random { seed: 1 },
            record_bytes: RANDOM_RECORD_BYTES,
            time_max: Some(Duration::from_secs(self.random_seconds)),
            ..self.streams()
        }
    }

    /// Whether it can be done as it is.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with what does not fit together.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.streams().thread_bytes == 0 {
            let text = format!(
                "{} threads need {} MiB on each target at least, not {} bytes",
                self.threads, self.threads, self.bytes
            );
            return Err(BenchError::Plan(text));
        }
        self.streams().check()?;
        self.random().check()
    }

    /// Measures each of `places` alone, and all of them together if there are several; `tell` hears of each figure when it is there.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Plan`], [`BenchError::NoRoom`] before anything is written.
    pub fn measure(
        &self,
        places: &[Place],
        cancel: &AtomicBool,
        tell: &dyn Fn(&DeviceFigure),
    ) -> Result<Vec<DeviceFigure>, BenchError> {
        self.check()?;
        places.iter().try_for_each(|place| place.check_room(self.streams().bytes(), self.threads as u64))?;
        let alone = (0..places.len()).map(|at| (Some(at), &places[at..=at]));
        let together = (places.len() > 1).then_some((None, places));
        let mut all = Vec::new();
        for (target, places) in alone.chain(together) {
            for repetition in 1..=self.repetitions {
                let figures = self.round(places, repetition, cancel)?;
                let figures = figures.into_iter().map(|figure| DeviceFigure { target, figure });
                all.extend(figures.inspect(|figure| tell(figure)));
            }
        }
        Ok(all)
    }

    /// Streams and random requests on all of `places` at the same time.
    fn round(
        &self,
        places: &[Place],
        repetition: u32,
        cancel: &AtomicBool,
    ) -> Result<Vec<Figure>, BenchError> {
        let phases = [
            ("stream write", self.streams(), Action::Write),
            ("stream read", self.streams(), Action::Read),
            ("random write", self.random(), Action::Write),
            ("random read", self.random(), Action::Read),
        ];
        let mut figures = Vec::new();
        for (what, plan, action) in phases {
            // What an earlier phase has left on its way to the device is not to be in the time of this one. Caches do not matter: all goes past them.
            places.iter().try_for_each(sync)?;
            if matches!((plan.order, action), (Order::Random { .. }, Action::Write)) {
                // The stamps of small records are others than those of large ones.
                on_all(places, &|place| DataFiles::new(&plan, place.path(), cancel).lay_out())?;
            }
            let outcome = on_all(places, &|place| DataFiles::new(&plan, place.path(), cancel).run(action))?;
            figures.push(Figure::new(what, self.threads * places.len(), repetition, &outcome, Vec::new()));
        }
        places.iter().try_for_each(|place| DataFiles::new(&self.streams(), place.path(), cancel).remove())?;
        Ok(figures)
    }
}

/// Waits until what was written to the file system of `place` is on its device.
fn sync(place: &Place) -> Result<(), BenchError> {
    let directory = std::fs::File::open(place.path()).map_err(BenchError::io("open", place.path()))?;
    rustix::fs::syncfs(directory).map_err(BenchError::errno("sync", place.path()))
}

/// Runs `run` in all places at the same time.
fn on_all(
    places: &[Place],
    run: &(dyn Fn(&Place) -> Result<Outcome, BenchError> + Sync),
) -> Result<Outcome, BenchError> {
    let outcomes: Vec<Result<Outcome, BenchError>> = std::thread::scope(|scope| {
        let threads = places.len();
        let start = |place| std::thread::Builder::new().spawn_scoped(scope, move || run(place));
        let running: Vec<_> = places.iter().map(start).collect();
        let join = |started: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match started {
            Ok(thread) => thread.join().unwrap_or(Err(BenchError::Panicked)),
            Err(answer) => Err(BenchError::Threads { threads, answer }),
        };
        running.into_iter().map(join).collect()
    });
    let outcomes: Vec<Outcome> = outcomes.into_iter().collect::<Result<_, _>>()?;
    Ok(Outcome::together(&outcomes))
}

/// What all targets do at the same time, and whether they limit each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sharing {
    /// What was done.
    pub what: String,
    /// Bytes per second of all together.
    pub together: f64,
    /// The sum of each alone.
    pub sum: f64,
}

impl Sharing {
    /// Compares all targets together with the sum of each alone; empty for one target.
    pub fn of(figures: &[DeviceFigure]) -> Vec<Sharing> {
        let mean = |target: Option<usize>, what: &str| {
            let same = figures.iter().filter(|figure| figure.target == target && figure.figure.what == what);
            Spread::of(&same.map(|figure| figure.figure.bytes_per_second()).collect::<Vec<_>>()).mean
        };
        let targets = figures.iter().filter_map(|figure| figure.target).max().map_or(0, |last| last + 1);
        let together =
            figures.iter().filter(|figure| figure.target.is_none() && figure.figure.repetition == 1);
        together
            .map(|figure| {
                let what = figure.figure.what.clone();
                let sum = (0..targets).map(|target| mean(Some(target), &what)).sum();
                Sharing { together: mean(None, &what), sum, what }
            })
            .collect()
    }

    /// Whether the targets limit each other: a disk, a controller or a bus that they share.
    pub fn is_limited(&self) -> bool {
        self.together < SHARING_PART * self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn plan() -> DevicePlan {
        DevicePlan { threads: 2, bytes: 4 << 20, depth: 4, random_seconds: 1, repetitions: 1 }
    }

    #[test]
    fn each_target_is_measured_alone_and_all_together() {
        let roots = [crate::test_disk::folder(), crate::test_disk::folder()];
        let places: Vec<Place> = roots.iter().map(|root| Place::make(root.path(), false).unwrap()).collect();
        let told = Cell::new(0);
        let figures = plan().measure(&places, &GO_ON, &|_| told.set(told.get() + 1)).unwrap();
        assert_eq!((figures.len(), told.get()), (12, 12));
        let of = |target: Option<usize>| figures.iter().filter(move |figure| figure.target == target);
        for target in [Some(0), Some(1), None] {
            let whats: Vec<&str> = of(target).map(|figure| figure.figure.what.as_str()).collect();
            assert_eq!(whats, ["stream write", "stream read", "random write", "random read"]);
        }
        assert_eq!(of(Some(1)).next().unwrap().figure.bytes, 4 << 20);
        assert_eq!(of(None).next().unwrap().figure.bytes, 8 << 20);
        assert_eq!(Sharing::of(&figures).len(), 4);
        assert!(
            roots
                .iter()
                .zip(&places)
                .all(|(_, place)| std::fs::read_dir(place.path()).unwrap().next().is_none())
        );
    }

    #[test]
    fn targets_that_limit_each_other_are_told() {
        let sharing = |together, sum| Sharing { what: "stream read".into(), together, sum };
        assert!(sharing(100.0, 200.0).is_limited() && !sharing(190.0, 200.0).is_limited());
    }

    #[test]
    fn less_than_a_record_for_each_thread_is_refused() {
        let refused = DevicePlan { bytes: 1 << 20, ..plan() }.check().unwrap_err();
        assert!(refused.to_string().contains("2 MiB"), "{refused}");
    }
}
