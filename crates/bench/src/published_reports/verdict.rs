//! What a measured value is held against, and whether it is as good.

use super::catalogue::{Better, FigureDefinition, ReportRow};

/// What a value should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FigureGoal {
    better: Better,
    pub(super) value: f64,
    /// Whether it is Tidegate's own goal, and not what the report states.
    pub(super) is_own: bool,
}

impl FigureGoal {
    /// The own goal if there is one, otherwise the value of the report.
    pub(super) fn of(row: &ReportRow, figure: &FigureDefinition) -> Option<Self> {
        let own = row.goals.get(&figure.id);
        let value = own.or_else(|| row.theirs.get(&figure.id))?;
        (figure.better != Better::Neither).then_some(Self {
            better: figure.better,
            value: *value,
            is_own: own.is_some(),
        })
    }

    pub(super) fn is_met_by(self, value: f64) -> bool {
        match self.better {
            Better::Higher => value >= self.value,
            Better::Lower => value <= self.value,
            Better::Equal => value == self.value,
            Better::Neither => true,
        }
    }

    /// Such as `>=`.
    pub(super) fn sign(self) -> &'static str {
        match self.better {
            Better::Higher => ">=",
            Better::Lower => "<=",
            Better::Equal | Better::Neither => "=",
        }
    }
}

/// Digits that matter: all before the decimal point, and at least three.
pub(super) fn display_number(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match magnitude {
        _ if value.fract() == 0.0 => 0,
        m if m >= 100.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{magnitude:.decimals$}");
    let (whole, fraction) = text
        .split_once('.')
        .map_or((&text[..], None), |(whole, fraction)| {
            (whole, Some(fraction))
        });
    let mut out = String::new();
    if value < 0.0 {
        out.push('-');
    }
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
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
            (Better::Higher, 5.0, 4.9),
            (Better::Lower, 5.0, 5.1),
            (Better::Equal, 5.0, 4.0),
        ] {
            assert!(goal(better).is_met_by(met), "{better:?}");
            assert!(!goal(better).is_met_by(missed), "{better:?}");
        }
    }

    #[test]
    fn numbers_are_readable() {
        let shown = [763_351.0, 3_631.84, 49.84, 0.28, 0.01, 0.004, 0.0, -12.0].map(display_number);
        let expected = [
            "763,351", "3,632", "49.8", "0.28", "0.010", "0.004", "0", "-12",
        ];
        assert_eq!(shown, expected);
    }
}
