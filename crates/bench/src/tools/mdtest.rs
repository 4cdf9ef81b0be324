//! mdtest (doc/mdtest.1 of IOR; what it prints: `summarize_results_rank0` in src/mdtest.c).

use super::Claim;
use crate::metadata::{MetadataPlan, Step};
use std::path::Path;

/// What it does, in order: our name, its option, and its name in the summary. Each is run for itself, so that caches can be dropped before.
const PHASES: [(Step, &str, &str); 4] = [
    (Step::Create, "-C", "File creation"),
    (Step::Stat, "-T", "File stat"),
    (Step::Read, "-E", "File read"),
    (Step::Remove, "-r", "File removal"),
];

/// The steps it does, in order; `utime` is none of its own.
pub fn steps() -> impl Iterator<Item = Step> {
    PHASES.iter().map(|(step, ..)| *step)
}

/// The command line of one phase, which leaves what the next one needs.
pub fn arguments(plan: &MetadataPlan, root: &Path, step: Step) -> Vec<String> {
    let mut line: Vec<String> = ["mpirun", "-np"].map(str::to_owned).to_vec();
    line.push(plan.threads.to_string());
    line.extend(["mdtest", "-F"].map(str::to_owned));
    line.extend(
        PHASES.iter().filter(|(known, ..)| *known == step).map(|(_, option, _)| (*option).to_owned()),
    );
    line.extend(["-i".into(), "1".into()]);
    line.extend(["-n".into(), plan.thread_files.to_string()]);
    line.extend(["-d".into(), root.join("mdtest").display().to_string()]);
    if !plan.is_shared {
        line.push("-u".into());
    }
    if plan.looks_at_neighbour {
        line.extend(["-N".into(), "1".into()]);
    }
    if plan.depth > 0 {
        line.extend([
            "-z".into(),
            plan.depth.to_string(),
            "-b".into(),
            plan.branches.to_string(),
            "-L".into(),
        ]);
    }
    if plan.file_bytes > 0 {
        let bytes = plan.file_bytes.to_string();
        line.extend(["-w".into(), bytes.clone(), "-e".into(), bytes]);
    }
    if plan.has_fsync {
        line.push("-y".into());
    }
    line
}

/// What it did, from its summary of rates: nothing if the phase is not there, or was not run.
pub fn claim(said: &str, plan: &MetadataPlan, step: Step) -> Option<Claim> {
    let rates = &said[said.find("SUMMARY rate")?..];
    let (_, _, name) = PHASES.iter().find(|(known, ..)| *known == step)?;
    let rest = rates.lines().find_map(|line| line.trim().strip_prefix(name))?;
    let numbers = rest.trim_start().trim_start_matches(':').split_whitespace();
    // Greatest, least, mean, deviation; of one iteration the first three are the same.
    let mean: f64 = numbers.into_iter().nth(2)?.parse().ok()?;
    if mean.is_nan() || mean <= 0.0 {
        return None;
    }
    let operations = plan.files();
    let bytes = if matches!(step, Step::Create | Step::Read) { plan.bytes() } else { 0 };
    Some(Claim { operations, bytes, seconds: operations as f64 / mean, ..Claim::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As mdtest 3.3 prints it; 4 leaves the colons out, and names the unit.
    const PRINTED: &str = "-- started at 11/20/2026 10:00:00 --\n\
        mdtest-3.3.0 was launched with 2 total task(s) on 1 node(s)\n\n\
        SUMMARY rate: (of 1 iterations)\n   \
        Operation                      Max            Min           Mean        Std Dev\n   \
        ---------                      ---            ---           ----        -------\n   \
        File creation             :      20000.000      20000.000      20000.000          0.000\n   \
        File stat                 :     400000.000     400000.000     400000.000          0.000\n   \
        File read                 :     100000.000     100000.000     100000.000          0.000\n   \
        File removal              :      25000.000      25000.000      25000.000          0.000\n   \
        Tree creation             :       5000.000       5000.000       5000.000          0.000\n   \
        Tree removal              :       6000.000       6000.000       6000.000          0.000\n\
        -- finished at 11/20/2026 10:00:01 --\n";

    fn plan() -> MetadataPlan {
        MetadataPlan {
            threads: 2,
            thread_files: 1000,
            file_bytes: 3072,
            is_shared: false,
            looks_at_neighbour: true,
            depth: 0,
            branches: 1,
            has_fsync: false,
        }
    }

    #[test]
    fn what_mdtest_prints_is_understood() {
        let new = PRINTED.replace(" :", "  ").replace("rate:", "rate (in ops/sec):");
        for text in [PRINTED, new.as_str()] {
            let claims: Vec<Claim> = steps().map(|step| claim(text, &plan(), step).unwrap()).collect();
            let seconds: Vec<f64> = claims.iter().map(|claim| claim.seconds).collect();
            assert_eq!(seconds, [0.1, 0.005, 0.02, 0.08]);
            assert_eq!((claims[0].operations, claims[0].bytes, claims[1].bytes), (2000, 2000 * 3072, 0));
        }
        let created = "SUMMARY rate: (of 1 iterations)\n File creation : 1 1 1 0\n File stat : 0 0 0 0\n";
        let told = |step| claim(created, &plan(), step).is_some();
        assert!(told(Step::Create) && !told(Step::Stat) && !told(Step::Remove) && !told(Step::Utime));
        let line = arguments(&plan(), Path::new("DIR"), Step::Stat).join(" ");
        assert_eq!(line, "mpirun -np 2 mdtest -F -T -i 1 -n 1000 -d DIR/mdtest -u -N 1 -w 3072 -e 3072");
    }
}
