//! What a server tells that it counts, read from the text format of Prometheus.
//!
//! Reading is total and bounded: a server that was broken into may send anything.

use std::collections::BTreeMap;

/// LIMIT: of the text of one server, bytes; what is behind is not read.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// LIMIT: kinds of calls, targets and clients that are kept of one server.
const ENTRIES_MAX: usize = 4096;
/// LIMIT: of a label, bytes.
const LABEL_BYTES_MAX: usize = 128;

/// Calls of one kind since the server was started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindCount {
    /// Calls within each bound, seconds, as many as within the ones before.
    pub within: Vec<(f64, f64)>,
    /// All.
    pub count: f64,
    /// The time they took together, seconds.
    pub took_s: f64,
    /// Those that failed.
    pub errors: f64,
}

/// A target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetState {
    /// Bytes.
    pub size: f64,
    /// Free bytes.
    pub free: f64,
    /// It serves no more after an error.
    pub is_stopped: bool,
}

/// What a client has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Calls.
    pub calls: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub written: f64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Of the software.
    pub version: String,
    /// When the process was started, seconds since 1970.
    pub started_s: f64,
    /// When its certificate ends, seconds since 1970.
    pub certificate_end_s: Option<f64>,
    /// Of the newest map that it has.
    pub epoch: u64,
    /// Memory in use, bytes.
    pub resident: f64,
    /// Processor time used, seconds.
    pub cpu_s: f64,
    /// Calls that it served, by service and kind.
    pub kinds: BTreeMap<(String, String), KindCount>,
    /// Content that it has served, bytes.
    pub read: f64,
    /// Content that it has taken, bytes.
    pub written: f64,
    /// Its targets, by number.
    pub targets: BTreeMap<u32, TargetState>,
    /// Clients, by name.
    pub clients: BTreeMap<String, Traffic>,
    /// Metadata takes no more changes after an error.
    pub is_metadata_stopped: bool,
    /// Where a manager has the state of the file system, and whether it reaches it.
    pub store: Option<(String, bool)>,
}

/// One line: name, labels, value.
struct Line<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl Line<'_> {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

impl Sample {
    /// Reads what a server has sent; what is not understood is left out.
    pub fn read(text: &str) -> Sample {
        let mut sample = Sample::default();
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].lines().filter_map(parse).for_each(|line| sample.take(&line));
        sample
    }

    fn take(&mut self, line: &Line<'_>) {
        match line.name {
            "ashlar_build_info" => self.version = line.label("version").unwrap_or_default().to_owned(),
            "process_start_time_seconds" => self.started_s = line.value,
            "ashlar_certificate_end_seconds" => self.certificate_end_s = Some(line.value),
            "ashlar_map_epoch" => self.epoch = line.value as u64,
            "process_resident_memory_bytes" => self.resident = line.value,
            "process_cpu_seconds_total" => self.cpu_s = line.value,
            "ashlar_meta_is_stopped" => self.is_metadata_stopped = line.value != 0.0,
            "ashlar_read_bytes_total" if line.label("side") == Some("served") => self.read = line.value,
            "ashlar_written_bytes_total" if line.label("side") == Some("served") => self.written = line.value,
            "ashlar_state_is_reached" => {
                self.store = Some((line.label("store").unwrap_or_default().to_owned(), line.value != 0.0));
            }
            "ashlar_target_size_bytes" => self.target(line, |target, value| target.size = value),
            "ashlar_target_free_bytes" => self.target(line, |target, value| target.free = value),
            "ashlar_target_is_stopped" => self.target(line, |target, value| target.is_stopped = value != 0.0),
            "ashlar_client_calls_total" => self.client(line, |traffic, value| traffic.calls = value),
            "ashlar_client_read_bytes_total" => self.client(line, |traffic, value| traffic.read = value),
            "ashlar_client_written_bytes_total" => {
                self.client(line, |traffic, value| traffic.written = value)
            }
            "ashlar_call_duration_seconds_bucket" => self.kind(line, |kind, line| {
                let bound = line.label("le").and_then(|text| text.parse().ok());
                // LIMIT: as many bounds as a histogram of ours could ever have.
                if let Some(bound) = bound.filter(|bound: &f64| bound.is_finite() && kind.within.len() < 64) {
                    kind.within.push((bound, line.value));
                }
            }),
            "ashlar_call_duration_seconds_sum" => self.kind(line, |kind, line| kind.took_s = line.value),
            "ashlar_call_duration_seconds_count" => self.kind(line, |kind, line| kind.count = line.value),
            "ashlar_call_errors_total" => self.kind(line, |kind, line| kind.errors += line.value),
            _ => {}
        }
    }

    fn target(&mut self, line: &Line<'_>, set: impl Fn(&mut TargetState, f64)) {
        let Some(id) = line.label("target").and_then(|id| id.parse().ok()) else { return };
        if self.targets.len() < ENTRIES_MAX || self.targets.contains_key(&id) {
            set(self.targets.entry(id).or_default(), line.value);
        }
    }

    fn client(&mut self, line: &Line<'_>, set: impl Fn(&mut Traffic, f64)) {
        let Some(name) = line.label("node") else { return };
        if self.clients.len() < ENTRIES_MAX || self.clients.contains_key(name) {
            set(self.clients.entry(name.to_owned()).or_default(), line.value);
        }
    }

    fn kind(&mut self, line: &Line<'_>, set: impl Fn(&mut KindCount, &Line<'_>)) {
        if line.label("side") != Some("served") {
            return;
        }
        let (Some(service), Some(kind)) = (line.label("service"), line.label("kind")) else { return };
        let key = (service.to_owned(), kind.to_owned());
        if self.kinds.len() < ENTRIES_MAX || self.kinds.contains_key(&key) {
            set(self.kinds.entry(key).or_default(), line);
        }
    }
}

/// Reads one line that is a sample with a number that can be one.
fn parse(line: &str) -> Option<Line<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        // LIMIT: no line of ours has more labels.
        while !rest.starts_with('}') && labels.len() < 8 {
            let (label, behind) = rest.split_once("=\"")?;
            let (value, behind) = unescape(behind)?;
            labels.push((label, value));
            rest = behind.strip_prefix(',').unwrap_or(behind);
        }
        rest = rest.strip_prefix('}')?;
    }
    let value: f64 = rest.trim().parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(Line { name, labels, value })
}

/// The text up to the closing quote, and what is behind it.
fn unescape(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        let meant = match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => '\n',
                other => other,
            },
            other => other,
        };
        if value.len() < LABEL_BYTES_MAX {
            value.push(meant);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_counts_is_read_as_it_was_written() {
        let text = "# HELP ashlar_build_info Always 1.\n# TYPE ashlar_build_info gauge\n\
            ashlar_build_info{version=\"0.1.0\",role=\"storage\"} 1\n\
            ashlar_map_epoch 17\n\
            ashlar_call_duration_seconds_bucket{side=\"served\",service=\"storage\",kind=\"read\",le=\"0.001\"} 8\n\
            ashlar_call_duration_seconds_bucket{side=\"served\",service=\"storage\",kind=\"read\",le=\"+Inf\"} 9\n\
            ashlar_call_duration_seconds_sum{side=\"served\",service=\"storage\",kind=\"read\"} 0.25\n\
            ashlar_call_duration_seconds_count{side=\"served\",service=\"storage\",kind=\"read\"} 9\n\
            ashlar_call_duration_seconds_count{side=\"sent\",service=\"storage\",kind=\"read\"} 99\n\
            ashlar_call_errors_total{side=\"served\",service=\"storage\",kind=\"read\",errno=\"EIO\"} 2\n\
            ashlar_call_errors_total{side=\"served\",service=\"storage\",kind=\"read\",errno=\"ENODEV\"} 1\n\
            ashlar_target_size_bytes{target=\"3\"} 1000\nashlar_target_free_bytes{target=\"3\"} 400\n\
            ashlar_client_read_bytes_total{node=\"c\\\"1\"} 5\n\
            ashlar_read_bytes_total{side=\"served\"} 77\n";
        let sample = Sample::read(text);
        assert_eq!((sample.version.as_str(), sample.epoch, sample.read), ("0.1.0", 17, 77.0));
        let read = &sample.kinds[&("storage".to_owned(), "read".to_owned())];
        let expected = KindCount { within: vec![(0.001, 8.0)], count: 9.0, took_s: 0.25, errors: 3.0 };
        assert_eq!((read, sample.kinds.len()), (&expected, 1));
        assert_eq!(sample.targets[&3], TargetState { size: 1000.0, free: 400.0, is_stopped: false });
        assert_eq!(sample.clients["c\"1"].read, 5.0);
    }

    #[test]
    fn hostile_text_is_left_out_and_takes_bounded_memory() {
        for text in [
            "ashlar_map_epoch NaN\nashlar_map_epoch -1\nashlar_map_epoch 1e999\nashlar_map_epoch",
            "ashlar_target_size_bytes{target=\"3\nashlar_target_size_bytes{target=\"3\\",
            "ashlar_target_size_bytes{target=3} 1\n{ \n} \n=\"\" 1",
            "ashlar_call_duration_seconds_count{side=\"served\",service=\"x\"} 1",
        ] {
            assert_eq!(Sample::read(text), Sample::default(), "{text}");
        }
        let many: String = (0..3 * ENTRIES_MAX)
            .map(|at| format!("ashlar_client_calls_total{{node=\"{at}\"}} 1\n"))
            .collect();
        assert_eq!(Sample::read(&many).clients.len(), ENTRIES_MAX);
        let long = format!("ashlar_client_calls_total{{node=\"{}\"}} 1\n", "ä".repeat(1 << 20));
        assert!(Sample::read(&long).clients.keys().all(|name| name.len() <= LABEL_BYTES_MAX + 3));
        let longest = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(Sample::read(&longest), Sample::default());
    }
}
