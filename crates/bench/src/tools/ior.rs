//! IOR 3 (its user guide; what it prints: `PrintReducedResult` in src/ior-output.c).

use super::Claim;
use crate::data::{Action, DataPlan, Files};
use std::path::Path;

/// The command line of one phase.
pub fn arguments(plan: &DataPlan, root: &Path, action: Action) -> Vec<String> {
    let (segments, each) = match plan.files {
        Files::PerThread => (1, true),
        Files::Shared { segments } => (segments, false),
    };
    let mut line: Vec<String> = ["mpirun", "-np"].map(str::to_owned).to_vec();
    line.push(plan.threads.to_string());
    line.extend(["ior", "-a", "POSIX"].map(str::to_owned));
    // -k: files stay for the next phase.
    line.extend([if action == Action::Write { "-w" } else { "-r" }.to_owned(), "-k".into()]);
    line.extend(["-t".into(), plan.record_bytes.to_string()]);
    line.extend(["-b".into(), (plan.thread_bytes / segments).to_string()]);
    line.extend(["-s".into(), segments.to_string()]);
    if each {
        line.push("-F".into());
    }
    if plan.counts_fsync && action == Action::Write {
        line.push("-e".into());
    }
    if plan.is_direct {
        line.push("--posix.odirect".into());
    }
    line.extend(["-o".into(), root.join("ior").display().to_string()]);
    line
}

/// What it did, from its table: bandwidth is the second field, the time the last but one, in all releases of IOR 3.
pub fn claim(said: &str, plan: &DataPlan, action: Action) -> Option<Claim> {
    let wanted = if action == Action::Write { "write" } else { "read" };
    said.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.first() != Some(&wanted) || fields.len() < 9 {
            return None;
        }
        let mebibytes: f64 = fields[1].parse().ok()?;
        let total: f64 = fields[fields.len() - 2].parse().ok()?;
        let _repetition: u32 = fields[fields.len() - 1].parse().ok()?;
        let bytes = plan.bytes();
        // Short runs have times that are printed with few digits; the rate has more.
        let seconds = if mebibytes > 0.0 { bytes as f64 / (mebibytes * f64::from(1 << 20)) } else { total };
        let operations = bytes / plan.record_bytes;
        (seconds > 0.0).then_some(Claim { operations, bytes, seconds, ..Claim::default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Order;

    /// As IOR 3.3 and later print it, and as 3.0 did.
    const NEW: &str = "Results: \n\n\
        access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter\n\
        ------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----\n\
        write     2048.00    2049.12    0.000488    1048576    1024.00    0.000123   0.999000   0.000456   1.000000   0   \n\
        \nMax Write: 2048.00 MiB/sec (2147.48 MB/sec)\n";
    const OLD: &str = "access    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter\n\
        ------    ---------  ---------- ---------  --------   --------   --------   --------   ----\n\
        read      4096.00    1048576    1024.00    0.000123   0.499000   0.000456   0.500000   0   \n";

    fn plan() -> DataPlan {
        DataPlan {
            threads: 2,
            files: Files::Shared { segments: 4 },
            order: Order::Sequential,
            record_bytes: 1 << 20,
            thread_bytes: 1 << 30,
            depth: 1,
            is_direct: true,
            counts_fsync: true,
            time_max: None,
        }
    }

    #[test]
    fn what_ior_prints_is_understood() {
        let write = claim(NEW, &plan(), Action::Write).unwrap();
        assert_eq!((write.bytes, write.operations, write.seconds), (2 << 30, 2048, 1.0));
        assert_eq!(claim(OLD, &plan(), Action::Read).unwrap().seconds, 0.5);
        assert!(claim(NEW, &plan(), Action::Read).is_none());
        let line = arguments(&plan(), Path::new("DIR"), Action::Write).join(" ");
        let wanted =
            "mpirun -np 2 ior -a POSIX -w -k -t 1048576 -b 268435456 -s 4 -e --posix.odirect -o DIR/ior";
        assert_eq!(line, wanted);
        let each = DataPlan { files: Files::PerThread, ..plan() };
        assert!(arguments(&each, Path::new("DIR"), Action::Read).contains(&"-F".to_owned()));
    }
}
