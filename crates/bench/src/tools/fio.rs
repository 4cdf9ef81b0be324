//! fio (its HOWTO describes options and the JSON it prints).

use super::Claim;
use crate::data::{Action, DataPlan, Files, Order};
use serde_json::Value;
use std::path::Path;

/// The command line of one phase.
pub fn arguments(plan: &DataPlan, root: &Path, action: Action) -> Vec<String> {
    let random = matches!(plan.order, Order::Random { .. });
    let rw = match (random, action) {
        (false, Action::Write) => "write",
        (false, Action::Read) => "read",
        (true, Action::Write) => "randwrite",
        (true, Action::Read) => "randread",
    };
    let mut line = vec!["fio".to_owned(), "--name=ashlar".into()];
    match plan.files {
        Files::PerThread => {
            line.push(format!("--directory={}", root.display()));
            line.push("--filename_format=data.$jobnum".into());
        }
        Files::Shared { .. } => {
            // One stretch after the other: what one segment is.
            line.push(format!("--filename={}", root.join("data").display()));
            line.push(format!("--offset_increment={}", plan.thread_bytes));
        }
    }
    let engine = if plan.depth == 1 { "psync" } else { "io_uring" };
    line.extend([
        format!("--rw={rw}"),
        format!("--bs={}", plan.record_bytes),
        format!("--size={}", plan.thread_bytes),
        format!("--numjobs={}", plan.threads),
        format!("--ioengine={engine}"),
        format!("--iodepth={}", plan.depth),
        format!("--direct={}", u8::from(plan.is_direct)),
        // Caches were emptied before; fio would do it again while its clock runs for others.
        "--invalidate=0".into(),
        "--fallocate=none".into(),
        "--thread".into(),
        "--group_reporting".into(),
        "--output-format=json".into(),
    ]);
    if action == Action::Write && plan.counts_fsync {
        line.push("--end_fsync=1".into());
    }
    if let Order::Random { seed } = plan.order {
        line.push(format!("--randseed={seed}"));
    }
    if let Some(time) = plan.time_max {
        line.extend(["--time_based=1".into(), format!("--runtime={}ms", time.as_millis())]);
    }
    line
}

/// What it did, from its JSON. Warnings may stand before it.
pub fn claim(said: &str, action: Action) -> Option<Claim> {
    let told: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let [job] = told["jobs"].as_array()?.as_slice() else { return None };
    let phase = &job[if action == Action::Write { "write" } else { "read" }];
    let micros = |part: &str| phase["clat_ns"]["percentile"][part].as_f64().map(|nanos| nanos / 1e3);
    // Calls of psync complete when they are submitted; only the sum of both times is the call's.
    let longest = phase["lat_ns"]["max"].as_f64().unwrap_or(0.0) / 1e3;
    let seconds = phase["runtime"].as_f64()? / 1e3;
    (job["error"] == 0 && seconds > 0.0).then_some(Claim {
        operations: phase["total_ios"].as_u64()?,
        bytes: phase["io_bytes"].as_u64()?,
        seconds,
        p50_us: micros("50.000000").unwrap_or(0.0),
        p99_us: micros("99.000000").unwrap_or(0.0),
        max_us: longest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from fio 3.33, less what is not read.
    const RECORDED: &str = r#"fio: a note that it prints before
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "w", "error" : 0,
      "read" : {
        "io_bytes" : 1253261312, "bw_bytes" : 2501519584, "iops" : 610722.554890, "runtime" : 501, "total_ios" : 305972,
        "clat_ns" : { "min" : 1900, "max" : 400000, "percentile" : { "50.000000" : 12096, "99.000000" : 23936 } },
        "lat_ns" : { "min" : 2000, "max" : 401000 }
      },
      "write" : { "io_bytes" : 0, "runtime" : 0, "total_ios" : 0, "clat_ns" : { "max" : 0 }, "lat_ns" : { "max" : 0 } }
    }
  ]
}"#;

    #[test]
    fn what_fio_prints_is_understood() {
        let claim = claim(RECORDED, Action::Read).unwrap();
        assert_eq!((claim.operations, claim.bytes, claim.seconds), (305_972, 1_253_261_312, 0.501));
        assert_eq!((claim.p50_us, claim.p99_us, claim.max_us), (12.096, 23.936, 401.0));
        assert!(super::claim(RECORDED, Action::Write).is_none(), "nothing was written");
        assert!(super::claim("fio: no such option", Action::Read).is_none());
    }
}
