//! Lists of numbers of threads.

/// Numbers of threads to measure with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadList(pub Vec<usize>);

/// LIMIT: threads of one measurement on one machine.
const THREADS_MAX: usize = 4096;

/// `4`, `1,2,8`, `1..64`, and lists of these.
pub fn parse_threads(text: &str) -> Result<ThreadList, String> {
    let number = |text: &str| match text.trim().parse::<usize>() {
        Ok(count @ 1..=THREADS_MAX) => Ok(count),
        _ => Err(format!("`{text}` is no number of threads from 1 to {THREADS_MAX}")),
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => all.push(number(part)?),
            Some((least, most)) => {
                let (least, most) = (number(least)?, number(most)?);
                if least > most {
                    return Err(format!("`{part}` goes down"));
                }
                let powers = (0..usize::BITS).map(|bit| 1 << bit).skip_while(|power| *power < least);
                all.extend(powers.take_while(|power| *power <= most));
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    if all.is_empty() { Err(format!("there is no power of two in `{text}`")) } else { Ok(ThreadList(all)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_threads_are_listed_or_all_powers_of_two_between_two() {
        let parsed = |text: &str| parse_threads(text).map(|list| list.0);
        assert_eq!(parsed("4"), Ok(vec![4]));
        assert_eq!(parsed("8,1, 3"), Ok(vec![1, 3, 8]));
        assert_eq!(parsed("1..8"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(parsed("3..20,5"), Ok(vec![4, 5, 8, 16]));
        for wrong in ["", "0", "x", "1..", "8..1", "5..7", "100000", "-1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
