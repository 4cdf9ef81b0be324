//! A directory with very many entries that is split by itself while two mounts are at work in it: nothing may be lost or seen twice, and how long calls take meanwhile is told beside how
//! long the same ones took before.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::lab::Lab;

/// How many names fewer than are needed for a split there are before it.
const MARGIN: u64 = 1000;
/// So many names of each mount are there at a time besides those that stay.
const BEHIND: usize = 200;
/// For how long calls are timed before the split.
const BEFORE: Duration = Duration::from_secs(20);
/// LIMIT: for how long is waited until the split begins, and for each entry until it is over.
const BEGIN_MAX: Duration = Duration::from_secs(60);
const ENTRY_MAX: Duration = Duration::from_millis(20);

/// Times that calls of one kind took, each in the order in which they were made.
#[derive(Debug, Default)]
struct Times {
    create: Vec<Duration>,
    stat: Vec<Duration>,
    change: Vec<Duration>,
}

fn timed<T>(times: &mut Vec<Duration>, call: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    let begin = Instant::now();
    let done = call();
    times.push(begin.elapsed());
    done
}

/// Makes names, looks at older ones, renames some, and removes them in the end, until it `is_over`. Tells how long that took, and which are left.
fn work(
    directory: &Path,
    prefix: &str,
    first: usize,
    is_over: &AtomicBool,
) -> anyhow::Result<(Times, Vec<String>)> {
    let name = |number: usize| match number % 10 {
        3 => format!("renamed-{prefix}{number}"),
        _ => format!("{prefix}{number}"),
    };
    let mut times = Times::default();
    let mut number = first;
    while !is_over.load(SeqCst) {
        let made = format!("{prefix}{number}");
        let create = || File::create_new(directory.join(&made));
        drop(timed(&mut times.create, create).with_context(|| format!("make {made}"))?);
        if name(number) != made {
            let to = directory.join(name(number));
            let rename = || fs::rename(directory.join(&made), &to);
            timed(&mut times.change, rename).with_context(|| format!("rename {made}"))?;
        }
        if number >= first + BEHIND {
            let (older, oldest) = (name(number - BEHIND / 2), name(number - BEHIND));
            let stat = || fs::metadata(directory.join(&older));
            timed(&mut times.stat, stat).with_context(|| format!("look at {older}"))?;
            let remove = || fs::remove_file(directory.join(&oldest));
            timed(&mut times.change, remove).with_context(|| format!("remove {oldest}"))?;
        }
        number += 1;
    }
    Ok((times, (number.saturating_sub(BEHIND).max(first)..number).map(name).collect()))
}

fn list(directory: &Path) -> anyhow::Result<HashSet<String>> {
    let mut names = HashSet::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(names.insert(name.clone()), "{name} is listed twice");
    }
    Ok(names)
}

fn kept(number: u64) -> String {
    format!("kept{number}")
}

/// Makes the names from `from` on until `to`, by each directory its share.
fn fill(directories: &[PathBuf], (from, to): (u64, u64)) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let count = directories.len() as u64;
        let made = directories.iter().zip(0..).map(|(directory, at)| {
            scope.spawn(move || {
                (from..to)
                    .filter(|number| number % count == at)
                    .try_for_each(|number| File::create_new(directory.join(kept(number))).map(drop))
            })
        });
        let made: Vec<_> = made.collect();
        made.into_iter().try_for_each(|thread| Ok(thread.join().expect("it does not panic")?))
    })
}

/// Whether a directory is split, or being split, and how far it is, as the command says.
fn shown(lab: &Lab, directory: &Path) -> anyhow::Result<(bool, bool)> {
    let output = Command::new(lab.binary()).args(["layout", "show"]).arg(directory).output()?;
    ensure!(output.status.success(), "layout show: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    Ok((text.contains("slices: "), text.contains("split_percent")))
}

/// Ends whoever goes on until he is told.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Has each mount be at work, and all names be listed, as long as `meanwhile` takes.
fn beside<T>(
    directories: &[PathBuf],
    (round, names): (usize, u64),
    meanwhile: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Times, Vec<String>)> {
    let (is_over, listings) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _end = End(&is_over);
        let workers: Vec<_> = directories
            .iter()
            .zip(["a", "b"])
            .map(|(directory, prefix)| {
                let is_over = &is_over;
                scope.spawn(move || work(directory, prefix, round * 100_000_000, is_over))
            })
            .collect();
        let lister = scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let listed = list(&directories[directories.len() - 1])?;
                let missing = (0..names).find(|number| !listed.contains(&kept(*number)));
                ensure!(missing.is_none(), "{missing:?} is not listed");
                listings.fetch_add(1, SeqCst);
            }
            Ok(())
        });
        let told = meanwhile()?;
        is_over.store(true, SeqCst);
        let (mut times, mut left) = (Times::default(), Vec::new());
        for worker in workers {
            let (more, names) = worker.join().expect("it does not panic")?;
            times.create.extend(more.create);
            times.stat.extend(more.stat);
            times.change.extend(more.change);
            left.extend(names);
        }
        lister.join().expect("it does not panic")?;
        println!("{} listings", listings.load(SeqCst));
        Ok((told, times, left))
    })
}

fn tell(what: &str, times: &mut Times) {
    let Times { create, stat, change } = times;
    for (kind, times) in [("create", create), ("stat", stat), ("rename and remove", change)] {
        times.sort();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1000.0);
        let (median, high, most) = (ms(at(50)), ms(at(99)), ms(times.last()));
        println!(
            "{what}, {kind}: {} calls, median {median:.2} ms, 99 % {high:.1} ms, longest {most:.1} ms",
            times.len()
        );
    }
}

/// Runs it on a cluster where directories of more than `names` entries are split.
pub(super) fn run(lab: &Lab, names: u64) -> anyhow::Result<()> {
    let directories: Vec<PathBuf> = lab.mounts().iter().map(|mount| mount.join("big")).collect();
    fs::create_dir(&directories[0])?;
    let begin = Instant::now();
    let filled = names.saturating_sub(MARGIN);
    fill(&directories, (0, filled))?;
    println!("{filled} names made in {:.1} s", begin.elapsed().as_secs_f64());
    let ((), mut before, mut left) = beside(&directories, (0, filled), || {
        thread::sleep(BEFORE);
        ensure!(shown(lab, &directories[0])? == (false, false), "it is split before it is large");
        Ok(())
    })?;
    tell("before", &mut before);
    // With those that are left there are 100 fewer than it takes; the next ones at work make them.
    let stays = filled + MARGIN / 2;
    fill(&directories, (filled, stays))?;
    let (took, mut during, more) = beside(&directories, (1, stays), || {
        let mut begin = Instant::now();
        let mut has_begun = false;
        loop {
            match shown(lab, &directories[0])? {
                (false, _) if begin.elapsed() > BEGIN_MAX => bail!("no split has begun"),
                (true, _) if !has_begun => (begin, has_begun) = (Instant::now(), true),
                (true, false) => return Ok(begin.elapsed()),
                (true, true) if begin.elapsed() > ENTRY_MAX * names as u32 => bail!("the split does not end"),
                _ => {}
            }
            thread::sleep(Duration::from_millis(20));
        }
    })?;
    tell("while it is split", &mut during);
    let seconds = took.as_secs_f64();
    println!("about {names} entries split in {seconds:.1} s, {:.0} a second", names as f64 / seconds);
    left.extend(more);
    let expected: HashSet<String> = (0..stays).map(kept).chain(left).collect();
    for directory in &directories {
        let listed = list(directory)?;
        let differ: Vec<_> = listed.symmetric_difference(&expected).take(10).collect();
        ensure!(differ.is_empty(), "listed or left, and not both: {differ:?}");
        let mut looked_at = expected.iter().step_by(expected.len() / 1000 + 1);
        looked_at.try_for_each(|name| fs::metadata(directory.join(name)).map(drop))?;
    }
    Ok(())
}
