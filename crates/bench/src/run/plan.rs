//! What a run does, point by point, and what one point told.

use super::part::Part;
use crate::data::{DataPlan, Files, Order};
use crate::figure::Figure;
use crate::metadata::MetadataPlan;
use crate::sample::Load;
use crate::{BenchError, tools};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Random records are drawn from this, so that two runs hit the same ones.
const SEED: u64 = 1;

/// Which program made the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// The workloads of this crate.
    Ashlar,
    /// fio
    Fio,
    /// IOzone
    Iozone,
    /// IOR
    Ior,
    /// mdtest
    Mdtest,
}

impl Tool {
    /// Its name as it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Ashlar => "ashlar",
            Tool::Fio => "fio",
            Tool::Iozone => "iozone",
            Tool::Ior => "ior",
            Tool::Mdtest => "mdtest",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// How much one thread does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Amount {
    /// Bytes of its file, or its stretch of the shared one; 0 for metadata.
    pub bytes: u64,
    /// Its files; 0 for content.
    pub files: u64,
    /// Seconds of a phase of random requests, and what the others are meant to take.
    pub seconds: f64,
}

/// One workload with one number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Which.
    pub part: Part,
    /// Threads.
    pub threads: usize,
    /// How much of it.
    pub amount: Amount,
    /// What all its phases are expected to take together, seconds.
    pub expected_seconds: f64,
}

/// A point as it is carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Content.
    Data(DataPlan),
    /// Names.
    Metadata(MetadataPlan),
}

impl Point {
    /// The workload, past the page cache if `is_direct` and the records allow it.
    pub fn work(&self, is_direct: bool) -> Work {
        let part = self.part;
        if let Some(file_bytes) = part.file_bytes() {
            return Work::Metadata(MetadataPlan {
                threads: self.threads,
                thread_files: self.amount.files,
                file_bytes,
                is_shared: part.is_shared(),
                looks_at_neighbour: true,
                depth: 0,
                branches: 1,
                has_fsync: false,
            });
        }
        let is_whole = part.record_bytes().is_multiple_of(crate::buffer::ALIGNMENT);
        Work::Data(DataPlan {
            threads: self.threads,
            files: if part.is_shared() { Files::Shared { segments: 1 } } else { Files::PerThread },
            order: if part.is_random() { Order::Random { seed: SEED } } else { Order::Sequential },
            record_bytes: part.record_bytes(),
            thread_bytes: self.amount.bytes,
            depth: part.depth(),
            is_direct: is_direct && is_whole,
            counts_fsync: true,
            time_max: part.is_random().then(|| Duration::from_secs_f64(self.amount.seconds)),
        })
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        match self.part.file_bytes() {
            Some(file) => file.saturating_mul(self.amount.files).saturating_mul(self.threads as u64),
            None => self.amount.bytes.saturating_mul(self.threads as u64),
        }
    }

    /// The command that repeats this point alone with so many agents (0 for this machine), with `DIR` for the directory.
    pub fn command(&self, plan: &Plan, agents: usize) -> String {
        let (threads, repetitions, is_direct) = (self.threads, plan.repetitions, plan.is_direct);
        let keeps = if plan.drops_caches { "" } else { " --keep-caches" };
        let team = if agents == 0 { String::new() } else { format!("--agents {agents} ") };
        let tail = format!("{team}--threads {threads} --repetitions {repetitions}{keeps}");
        match self.work(is_direct) {
            Work::Metadata(plan) => {
                let shared = if plan.is_shared { " --shared" } else { "" };
                format!(
                    "ashlar bench metadata DIR --files {} --size {} --neighbour{shared} {tail}",
                    plan.files(),
                    plan.file_bytes
                )
            }
            Work::Data(plan) => {
                let shared = if matches!(plan.files, Files::Shared { .. }) { " --shared" } else { "" };
                let direct = if plan.is_direct { " --direct" } else { "" };
                let (kind, more) = if self.part.is_random() {
                    let seconds = self.amount.seconds.ceil();
                    ("random", format!(" --depth {} --seconds {seconds} --seed {SEED}", plan.depth))
                } else {
                    ("sequential", String::new())
                };
                format!(
                    "ashlar bench {kind} DIR --thread-bytes {} --record {}{shared}{direct}{more} {tail}",
                    plan.thread_bytes, plan.record_bytes
                )
            }
        }
    }
}

/// All of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured, in this order, once per repetition.
    pub points: Vec<Point>,
    /// How often.
    pub repetitions: u32,
    /// Whether content goes past the page cache.
    pub is_direct: bool,
    /// Whether caches of all measuring machines are dropped between phases.
    pub drops_caches: bool,
    /// Memory of the measuring machines and of servers that are others, bytes.
    pub memory_bytes: u64,
    /// Levels to which the file system is filled at the end, percent, ascending; empty without consent.
    pub fill_percents: Vec<u8>,
    /// What is measured at each level.
    pub fill_points: Vec<Point>,
    /// Programs that do the same beside the workloads of this crate.
    pub tools: Vec<Tool>,
    /// The time that was asked for, seconds; 0 when the plan is that of an earlier report.
    pub budget_seconds: f64,
    /// What was made shorter, sentences.
    pub shortened: Vec<String>,
    /// What was left out, sentences.
    pub left_out: Vec<String>,
}

impl Plan {
    /// The parts, in order.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for point in &self.points {
            if !parts.contains(&point.part) {
                parts.push(point.part);
            }
        }
        parts
    }

    /// The numbers of threads, ascending.
    pub fn threads(&self) -> Vec<usize> {
        let mut threads: Vec<usize> = self.points.iter().map(|point| point.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        threads
    }

    /// What all of it is expected to take, seconds, without writing what only fills.
    pub fn expected_seconds(&self) -> f64 {
        let programs = |part| 1 + self.tools.iter().filter(|tool| tools::does(**tool, part)).count();
        let all: f64 =
            self.points.iter().map(|point| point.expected_seconds * programs(point.part) as f64).sum();
        let fill: f64 = self.fill_points.iter().map(|point| point.expected_seconds).sum();
        f64::from(self.repetitions) * (all + fill * self.fill_percents.len() as f64)
    }

    /// Most bytes that are there at the same time, without what only fills.
    pub fn bytes_max(&self) -> u64 {
        self.points.iter().chain(&self.fill_points).map(Point::bytes).max().unwrap_or(0)
    }

    /// Most files that are there at the same time.
    pub fn files_max(&self) -> u64 {
        let files = |point: &Point| point.amount.files.max(1).saturating_mul(point.threads as u64);
        self.points.iter().chain(&self.fill_points).map(files).max().unwrap_or(0)
    }

    /// Whether every point can be carried out.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with the first that cannot.
    pub fn check(&self) -> Result<(), BenchError> {
        for point in self.points.iter().chain(&self.fill_points) {
            match point.work(self.is_direct) {
                Work::Data(plan) => plan.check()?,
                Work::Metadata(plan) => plan.check()?,
            }
        }
        Ok(())
    }
}

/// One phase of one repetition of one point, and what the machines did meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Of which part.
    pub part: Part,
    /// By which program.
    pub tool: Tool,
    /// How full the file system was made before, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_percent: Option<u8>,
    /// What came out.
    pub figure: Figure,
    /// What processors, networks and disks did; nothing if the phase was too short to tell, or there were several machines.
    pub load: Option<Load>,
    /// The same of each agent, in their order, where there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<Option<Load>>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn point(part: Part, threads: usize) -> Point {
        let amount = Amount { bytes: 8 << 20, files: 40, seconds: 1.5 };
        Point { part, threads, amount, expected_seconds: 3.0 }
    }

    pub fn plan(points: Vec<Point>) -> Plan {
        Plan {
            points,
            repetitions: 3,
            is_direct: true,
            drops_caches: false,
            memory_bytes: 1 << 30,
            fill_percents: Vec::new(),
            fill_points: Vec::new(),
            tools: Vec::new(),
            budget_seconds: 60.0,
            shortened: Vec::new(),
            left_out: Vec::new(),
        }
    }

    #[test]
    fn a_program_takes_time_only_where_it_takes_part() {
        let both = vec![point(Part::Random4k, 2), point(Part::Metadata0, 2)];
        let with = |tools: Vec<Tool>| Plan { tools, ..plan(both.clone()) }.expected_seconds();
        assert_eq!(
            (with(vec![]), with(vec![Tool::Fio]), with(vec![Tool::Fio, Tool::Mdtest])),
            (18.0, 27.0, 36.0)
        );
    }

    #[test]
    fn every_part_can_be_carried_out_and_be_repeated_alone() {
        for part in Part::ALL {
            let point = point(part, 4);
            plan(vec![point]).check().unwrap();
            let command = point.command(&plan(Vec::new()), 0);
            let kind = command.split_whitespace().nth(2).unwrap();
            assert!(part.name().starts_with(kind), "{command}");
            assert_eq!(command.contains("--shared"), part.is_shared(), "{command}");
            let is_direct =
                matches!(part, Part::Random4k | Part::Random4kDeep) || part.unit() == crate::run::Unit::Bytes;
            assert_eq!(command.contains("--direct"), is_direct, "{command}");
        }
    }
}
