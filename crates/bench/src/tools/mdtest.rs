//! mdtest (doc/mdtest.1 of IOR; what it prints: `summarize_results_rank0` in src/mdtest.c).

use super::Claim;
use crate::metadata::MetadataPlan;
use std::path::Path;

/// The command line of all phases.
pub fn arguments(plan: &MetadataPlan, root: &Path) -> Vec<String> {
    let mut line: Vec<String> = ["mpirun", "-np"].map(str::to_owned).to_vec();
    line.push(plan.threads.to_string());
    line.extend(["mdtest", "-F", "-C", "-T", "-E", "-r", "-i", "1"].map(str::to_owned));
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

/// What it did, from its summary of rates: nothing if a phase is missing there.
pub fn claims(said: &str, plan: &MetadataPlan) -> Option<Vec<(&'static str, Claim)>> {
    let rates = &said[said.find("SUMMARY rate")?..];
    let phases = [
        ("create", "File creation"),
        ("stat", "File stat"),
        ("read", "File read"),
        ("remove", "File removal"),
    ];
    let mut all = Vec::new();
    for (what, name) in phases {
        let rest = rates.lines().find_map(|line| line.trim().strip_prefix(name))?;
        let numbers = rest.trim_start().trim_start_matches(':').split_whitespace();
        // Greatest, least, mean, deviation; of one iteration the first three are the same.
        let mean: f64 = numbers.into_iter().nth(2)?.parse().ok()?;
        let operations = plan.files();
        let bytes = if matches!(what, "create" | "read") { plan.bytes() } else { 0 };
        if mean.is_nan() || mean <= 0.0 {
            return None;
        }
        all.push((what, Claim { operations, bytes, seconds: operations as f64 / mean, ..Claim::default() }));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As mdtest 3.3 prints it; 4 leaves the colons out.
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
        for text in [PRINTED.to_owned(), PRINTED.replace(" :", "  ")] {
            let claims = claims(&text, &plan()).unwrap();
            let seconds: Vec<(&str, f64)> =
                claims.iter().map(|(what, claim)| (*what, claim.seconds)).collect();
            assert_eq!(seconds, [("create", 0.1), ("stat", 0.005), ("read", 0.02), ("remove", 0.08)]);
            assert_eq!(
                (claims[0].1.operations, claims[0].1.bytes, claims[1].1.bytes),
                (2000, 2000 * 3072, 0)
            );
        }
        assert!(claims("SUMMARY rate: (of 1 iterations)\n File creation : 1 1 1 0\n", &plan()).is_none());
        let line = arguments(&plan(), Path::new("DIR")).join(" ");
        assert_eq!(
            line,
            "mpirun -np 2 mdtest -F -C -T -E -r -i 1 -n 1000 -d DIR/mdtest -u -N 1 -w 3072 -e 3072"
        );
    }
}
