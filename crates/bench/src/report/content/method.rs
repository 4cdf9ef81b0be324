//! How it was measured, so that somebody else can do it again and judge it.

use super::super::document::{Block, Document, Table};
use super::super::number;
use super::Report;
use crate::run::{Point, Work};

/// The section.
pub fn method(report: &Report, out: &mut Document) {
    let plan = &report.plan;
    out.heading(2, "Method");
    out.push(Block::Commands(vec![report.command.clone()]));
    let agents = report.agents.len();
    let whose = if agents == 0 { "this machine" } else { "all agents' machines" };
    let caches = if plan.drops_caches {
        format!("all caches of {whose} are dropped")
    } else {
        format!("caches of {whose} are not dropped")
    };
    let direct = if plan.is_direct {
        "Content goes past the page cache (O_DIRECT) where records are a multiple of 4 KiB."
    } else {
        "Content goes through the page cache."
    };
    let budget = if plan.budget_seconds > 0.0 {
        format!(
            "The time that was asked for is {}; sizes were planned from a short trial to fit into it.",
            number::time(plan.budget_seconds)
        )
    } else {
        "Sizes are those of the report that this run was to be the same as.".into()
    };
    let neighbour = if agents < 2 {
        "the next thread, not by the one that made them"
    } else {
        "a thread of the next agent, not by the one that made them"
    };
    let mut items = vec![
        budget,
        format!(
            "All points are measured once, then all a second time, and so on, {} times: what drifts during the run shows as spread between \
             repetitions, not as a difference between workloads.",
            plan.repetitions
        ),
        format!("Between phases written files are synced, their pages evicted, and {caches}; what is still cached then is looked at, and more than 1 % of it is told. {direct}"),
        "The time of a phase runs from the moment all threads are let go to the end of the last one; of writing it includes fsync and close.".into(),
        "Every record carries its file and place and is looked at when it is read: there is no figure for wrong data.".into(),
        "Random requests hit each record once before they hit one again, for a set time. Files are laid out in large pieces before.".into(),
        format!("Files of metadata workloads are looked at by {neighbour}. Making and removing directories is in no figure."),
        format!("Data is meant to be twice the memory of clients and servers, {} here; where there was less, it is said beside the figure.", number::bytes(plan.memory_bytes.saturating_mul(2))),
    ];
    if agents > 0 {
        items.push(format!(
            "{agents} agent{} measure{}, and nobody else: threads are given out to them in turn, all are let go at the same time, and the time of a phase ends with the \
             last thread of all. Latencies of all agents are counted into one distribution. Agents have their numbers by the names of their machines.",
            if agents == 1 { "" } else { "s" },
            if agents == 1 { "s" } else { "" },
        ));
    }
    out.push(Block::List(items));
    out.push(Block::Table(points(&plan.points, plan.is_direct)));
    out.heading(3, "How the bottleneck is named");
    let (watched, most) = match agents {
        0 => ("this machine's", ""),
        _ => (
            "every agent's",
            " Of all machines the one that is most loaded is judged, and told with the mean of all.",
        ),
    };
    out.say(format!("Twenty times a second {watched} processors, network interfaces and disks are looked at (/proc/stat, /proc/net/dev, /proc/diskstats). The first rule that holds at the peak names the bottleneck; others that hold are told with it.{most} What servers on other machines do is not seen from here."));
    out.push(Block::List(vec![
        "Network: an interface moves 85 % of its link or more in one direction.".into(),
        "Devices: 90 % or more of what the devices did alone, or a disk that is busy 90 % of the time or more while more threads do not bring more (a disk that takes many requests at once is busy with a single one).".into(),
        "Processors: all together are busy 90 % of the time or more; or one of them 95 %.".into(),
        "Waiting: 30 % of processor time or more waits for a disk: for the busiest if that is busy 40 % of the time or more, else for one that is not seen from here.".into(),
        "Otherwise latency: each request waits for the one before.".into(),
    ]));
}

/// How much each point did.
fn points(points: &[Point], is_direct: bool) -> Table {
    let head =
        ["Workload", "#Threads", "#Record", "#Each thread", "#All", "#Requests each", "Past the cache"];
    let mut table = Table::new("What each point does", &head);
    for point in points {
        let (record, each, depth, direct) = match point.work(is_direct) {
            Work::Data(plan) => {
                let each = number::bytes(plan.thread_bytes);
                let time =
                    plan.time_max.map_or_else(String::new, |time| format!(", {:.1} s", time.as_secs_f64()));
                (number::bytes(plan.record_bytes), format!("{each}{time}"), plan.depth, plan.is_direct)
            }
            Work::Metadata(plan) => (
                number::bytes(plan.file_bytes),
                format!("{} files", number::plain(plan.thread_files as f64)),
                1,
                false,
            ),
        };
        let all = if point.part.is_metadata() {
            format!("{} files", number::plain(point.amount.files as f64 * point.threads as f64))
        } else {
            number::bytes(point.bytes())
        };
        let direct = if direct { "yes" } else { "no" }.to_owned();
        table.rows.push(vec![
            point.part.title().into(),
            point.threads.to_string(),
            record,
            each,
            all,
            depth.to_string(),
            direct,
        ]);
    }
    table
}
