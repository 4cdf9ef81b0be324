//! Everybody of a process who has something to tell.

use crate::calls::Calls;
use crate::process;
use crate::text::{MetricType, Text};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

type Source = dyn Fn(&mut Text) + Send;

/// LIMIT: for how long a source is waited for that is telling somebody else: what it tells takes it less, unless it hangs.
const TURN_MAX: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Default)]
pub struct Registry {
    calls: Mutex<Vec<Arc<Calls>>>,
    /// Each is held by whoever asks it.
    sources: Mutex<Vec<Arc<Mutex<Box<Source>>>>>,
}

impl Registry {
    /// Only what every process tells, with the version and role of this one.
    pub fn new(version: &'static str, role: &'static str) -> Registry {
        let registry = Registry::default();
        registry.add(move |text| {
            text.family("ashlar_build_info", MetricType::Gauge, "Always 1; the labels say what runs.");
            text.sample(&[("version", version), ("role", role)], 1);
        });
        registry.add(process::tell);
        registry
    }

    /// These calls are told from now on.
    pub fn add_calls(&self, calls: Arc<Calls>) {
        self.calls.lock().push(calls);
    }

    /// `source` is asked whenever somebody fetches. Its metrics must be its own alone. Several who fetch at the same time ask it in turn; while it does not
    /// answer one of them, say because it waits for a disk, others get everything but its metrics.
    pub fn add(&self, source: impl Fn(&mut Text) + Send + 'static) {
        self.sources.lock().push(Arc::new(Mutex::new(Box::new(source))));
    }

    /// Everything, as text.
    pub fn text(&self) -> String {
        let mut text = Text::default();
        let calls = self.calls.lock().clone();
        Calls::tell(&calls.iter().map(Arc::as_ref).collect::<Vec<_>>(), &mut text);
        let sources = self.sources.lock().clone();
        for source in sources {
            if let Some(source) = source.try_lock_for(TURN_MAX) {
                source(&mut text);
            }
        }
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_source_that_hangs_keeps_nobody_else_waiting() {
        let registry = Arc::new(Registry::new("1", "storage"));
        let (entered, is_entered) = channel();
        let (release, is_released) = channel::<()>();
        let is_released = Mutex::new(is_released);
        registry.add(move |text| {
            let _ = entered.send(());
            let _ = is_released.lock().recv();
            text.single("ashlar_slow", MetricType::Gauge, "Slow.", 1);
        });
        let first = std::thread::spawn({
            let registry = registry.clone();
            move || registry.text()
        });
        assert!(is_entered.recv().is_ok());
        let second = registry.text();
        assert!(second.contains("ashlar_build_info") && !second.contains("ashlar_slow"), "{second}");
        drop(release);
        assert!(first.join().is_ok_and(|text| text.contains("ashlar_slow 1")));
    }
}
