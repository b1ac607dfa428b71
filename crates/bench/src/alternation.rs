//! Several rounds, taking turns between the sides, so that what changes on the machine hits all of them alike.

use crate::report::ReportSide;
use crate::round_outcome::RoundOutcome;

/// Measures every label in turn, `rounds` times.
pub(crate) fn run_alternating(
    labels: &[String],
    rounds: u32,
    mut measure: impl FnMut(usize, String) -> anyhow::Result<RoundOutcome>,
) -> anyhow::Result<Vec<ReportSide>> {
    let mut outcomes: Vec<Vec<RoundOutcome>> = labels.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        for (number, label) in labels.iter().enumerate() {
            let title = if rounds > 1 {
                format!("{label}, round {round} of {rounds}")
            } else {
                label.clone()
            };
            outcomes[number].push(measure(number, title)?);
        }
    }
    let sides = labels.iter().zip(outcomes);
    Ok(sides
        .filter_map(|(label, rounds)| {
            let mut total = rounds.first()?.clone();
            for round in &rounds[1..] {
                total.add_round(round);
            }
            Some(ReportSide {
                label: label.clone(),
                total,
                rounds,
            })
        })
        .collect())
}
