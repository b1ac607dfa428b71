//! What a measured value is held against, and whether it is as good.

use super::catalogue::{BetterDirection, FigureDefinition, ReportRow};

/// Share by which a value may miss a goal: a report states rounded values, and clocks are not exact.
const TOLERANCE: f64 = 0.001;

/// What a value should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FigureGoal {
    better: BetterDirection,
    pub(super) value: f64,
    /// Whether it is Tidegate's own goal, and not what the report states.
    pub(super) is_own: bool,
}

impl FigureGoal {
    /// The own goal if there is one, otherwise the value of the report if it measures the same.
    pub(super) fn of(row: &ReportRow, figure: &FigureDefinition) -> Option<Self> {
        let own = row.goals.get(&figure.id);
        let theirs = row.theirs.get(&figure.id);
        let value = own.or_else(|| theirs.filter(|_| !figure.is_other_measure))?;
        (figure.better != BetterDirection::Neither).then_some(Self {
            better: figure.better,
            value: *value,
            is_own: own.is_some(),
        })
    }

    pub(super) fn is_met_by(self, value: f64) -> bool {
        match self.better {
            BetterDirection::Higher => value >= self.value * (1.0 - TOLERANCE),
            BetterDirection::Lower => value <= self.value * (1.0 + TOLERANCE),
            BetterDirection::Equal => value == self.value,
            BetterDirection::Neither => true,
        }
    }

    /// Such as `>=`.
    pub(super) fn sign(self) -> &'static str {
        match self.better {
            BetterDirection::Higher => ">=",
            BetterDirection::Lower => "<=",
            BetterDirection::Equal | BetterDirection::Neither => "=",
        }
    }
}

/// A measured value, with the digits that matter: all before the decimal point, and at least three.
pub(super) fn display_measured(value: f64) -> String {
    let decimals = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        m if m >= 100.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 0.1 => 2,
        _ => 3,
    };
    group_thousands(&format!("{value:.decimals$}"))
}

/// A value of a report, with the digits that it states.
pub(super) fn display_stated(value: f64) -> String {
    group_thousands(&value.to_string())
}

fn group_thousands(number: &str) -> String {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number),
    };
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut out = sign.to_owned();
    for (at, digit) in digits.char_indices() {
        if at > 0 && at < whole && (whole - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_met_or_missed() {
        let goal = |better| FigureGoal {
            better,
            value: 5.0,
            is_own: false,
        };
        for (better, met, missed) in [
            (BetterDirection::Higher, 4.999, 4.99),
            (BetterDirection::Lower, 5.001, 5.01),
            (BetterDirection::Equal, 5.0, 4.0),
        ] {
            assert!(goal(better).is_met_by(met), "{better:?}");
            assert!(!goal(better).is_met_by(missed), "{better:?}");
        }
    }

    #[test]
    fn numbers_are_readable() {
        let measured = [763_351.0, 3_631.84, 49.84, 0.284, 0.01, 0.0, -1_234.5];
        let expected = ["763,351", "3,632", "49.8", "0.28", "0.010", "0", "-1,234"];
        assert_eq!(measured.map(display_measured), expected);
        let stated = [763_351.0, 97_067.59, 0.03, 5.0].map(display_stated);
        assert_eq!(stated, ["763,351", "97,067.59", "0.03", "5"]);
    }
}
