//! A position that moves along a line of points with a constant speed.

use super::state_value::{Component, StateValue};
use super::street_map;
use crate::definition::{NumberRange, RouteDefinition, RouteEnd, RouteStart};
use crate::random::RandomKey;

const EARTH_RADIUS_M: f64 = 6_371_000.0;
const MAX_POINTS: usize = 10_000;
const SPEED_DRAW: u64 = 0;
const START_DRAW: u64 = 1;
const LINE_DRAW: u64 = 2;
/// Digits after the decimal point of degrees: 1 cm.
const DEGREE_DECIMALS: u8 = 7;

/// A line of points.
#[derive(Debug)]
struct RouteLine {
    points: Vec<[f64; 2]>,
    /// Metres from the first point to each point.
    distances: Vec<f64>,
}

#[derive(Debug)]
pub(super) struct Route {
    /// Each device travels on one of them.
    lines: Vec<RouteLine>,
    speed_kmh: NumberRange,
    end: RouteEnd,
    start: RouteStart,
}

impl RouteLine {
    fn new(mut points: Vec<[f64; 2]>, end: RouteEnd) -> Result<Self, String> {
        if !(2..=MAX_POINTS).contains(&points.len()) {
            return Err(format!(
                "expected 2 to {MAX_POINTS} points, found {}",
                points.len()
            ));
        }
        for (number, [longitude, latitude]) in points.iter().enumerate() {
            if longitude.abs() > 180.0 || latitude.abs() > 90.0 {
                return Err(format!(
                    "point {number} is [{longitude}, {latitude}]; expected [longitude, latitude] in degrees"
                ));
            }
        }
        if end == RouteEnd::Close {
            points.push(points[0]);
        }
        let mut distances = vec![0.0];
        for pair in points.windows(2) {
            let before = distances[distances.len() - 1];
            distances.push(before + distance_m(pair[0], pair[1]));
        }
        if distances[distances.len() - 1] == 0.0 {
            return Err("all points are the same".to_owned());
        }
        Ok(Self { points, distances })
    }

    fn length_m(&self) -> f64 {
        self.distances[self.distances.len() - 1]
    }
}

impl Route {
    pub(super) fn compile(definition: &RouteDefinition) -> Result<Self, String> {
        if definition.speed_kmh.from < 0.0 {
            return Err("`speed_kmh` must be at least 0".to_owned());
        }
        let lines = match &definition.area {
            Some(_) if !definition.points.is_empty() => {
                return Err("expected `points` or `area`, found both".to_owned());
            }
            Some(area) => street_map::routes(area)?,
            None => vec![definition.points.clone()],
        };
        let lines = lines
            .into_iter()
            .map(|points| RouteLine::new(points, definition.end))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            lines,
            speed_kmh: definition.speed_kmh,
            end: definition.end,
            start: definition.start,
        })
    }

    pub(super) fn value(
        &self,
        component: Component,
        elapsed_ns: u64,
        key: RandomKey,
    ) -> StateValue<'static> {
        let line = match self.lines.len() {
            1 => 0,
            lines => key.below(LINE_DRAW, lines as u64) as usize,
        };
        let line = &self.lines[line];
        let length_m = line.length_m();
        let speed_kmh = key.between(SPEED_DRAW, self.speed_kmh.from, self.speed_kmh.to);
        let start_m = match self.start {
            RouteStart::Random => key.between(START_DRAW, 0.0, length_m),
            RouteStart::First => 0.0,
        };
        let travelled_m = start_m + speed_kmh / 3.6 * (elapsed_ns as f64 / 1e9);
        let (at_m, is_backward, is_moving) = self.place(travelled_m, length_m);
        let next = line.distances.partition_point(|distance| *distance <= at_m);
        let next = next.clamp(1, line.points.len() - 1);
        let (from, to) = (line.points[next - 1], line.points[next]);
        let leg_m = line.distances[next] - line.distances[next - 1];
        let part = if leg_m > 0.0 {
            (at_m - line.distances[next - 1]) / leg_m
        } else {
            0.0
        };
        let longitude = from[0] + (to[0] - from[0]) * part;
        let latitude = from[1] + (to[1] - from[1]) * part;
        let degrees = |value| StateValue::Number {
            value,
            decimals: DEGREE_DECIMALS,
        };
        let tenths = |value| StateValue::Number { value, decimals: 1 };
        match component {
            Component::Whole => StateValue::Position {
                longitude,
                latitude,
            },
            Component::Longitude => degrees(longitude),
            Component::Latitude => degrees(latitude),
            Component::SpeedKmh => tenths(if is_moving { speed_kmh } else { 0.0 }),
            Component::Heading => {
                let east = (to[0] - from[0]) * from[1].to_radians().cos();
                let heading = east.atan2(to[1] - from[1]).to_degrees();
                let heading = if is_backward {
                    heading + 180.0
                } else {
                    heading
                };
                tenths(heading.rem_euclid(360.0))
            }
        }
    }

    /// Metres from the first point, whether the way leads back, and whether the device moves.
    fn place(&self, travelled_m: f64, length_m: f64) -> (f64, bool, bool) {
        match self.end {
            RouteEnd::Close => (travelled_m % length_m, false, true),
            RouteEnd::Stop => (travelled_m.min(length_m), false, travelled_m < length_m),
            RouteEnd::Return => {
                let at_m = travelled_m % (2.0 * length_m);
                match at_m > length_m {
                    true => (2.0 * length_m - at_m, true, true),
                    false => (at_m, false, true),
                }
            }
        }
    }
}

/// Great-circle distance by the haversine formula.
fn distance_m(from: [f64; 2], to: [f64; 2]) -> f64 {
    let (from_lat, to_lat) = (from[1].to_radians(), to[1].to_radians());
    let half_lat = ((to_lat - from_lat) / 2.0).sin();
    let half_lon = ((to[0] - from[0]).to_radians() / 2.0).sin();
    let square = half_lat * half_lat + from_lat.cos() * to_lat.cos() * half_lon * half_lon;
    2.0 * EARTH_RADIUS_M * square.sqrt().min(1.0).asin()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(end: RouteEnd) -> Route {
        // One degree of latitude, 111.19 km, to the north.
        Route::compile(&RouteDefinition {
            points: vec![[10.0, 50.0], [10.0, 51.0]],
            area: None,
            speed_kmh: NumberRange::single(111.195),
            end,
            start: RouteStart::First,
        })
        .expect("well-formed")
    }

    fn latitude_and_heading(route: &Route, hours: f64) -> (f64, f64) {
        let key = RandomKey::of_device(1, 0, 0);
        let number = |component| match route.value(component, (hours * 3_600e9) as u64, key) {
            StateValue::Number { value, .. } => value,
            other => panic!("{other:?}"),
        };
        (number(Component::Latitude), number(Component::Heading))
    }

    #[test]
    fn vehicles_travel_with_their_speed_and_turn_at_the_end() {
        for (end, hours, latitude, heading) in [
            (RouteEnd::Stop, 0.5, 50.5, 0.0),
            (RouteEnd::Stop, 1.5, 51.0, 0.0),
            (RouteEnd::Return, 1.25, 50.75, 180.0),
            (RouteEnd::Return, 2.25, 50.25, 0.0),
            (RouteEnd::Close, 1.25, 50.75, 180.0),
            (RouteEnd::Close, 2.25, 50.25, 0.0),
        ] {
            let (found, direction) = latitude_and_heading(&route(end), hours);
            assert!((found - latitude).abs() < 1e-3, "{end:?} {hours}: {found}");
            assert!(
                (direction - heading).abs() < 1e-6,
                "{end:?} {hours}: {direction}"
            );
        }
    }

    #[test]
    fn wrong_routes_are_refused() {
        let compile = |points: Vec<[f64; 2]>| {
            Route::compile(&RouteDefinition {
                points,
                area: None,
                speed_kmh: NumberRange::single(1.0),
                end: RouteEnd::Stop,
                start: RouteStart::First,
            })
            .unwrap_err()
        };
        assert!(compile(vec![[0.0, 0.0]]).contains("found 1"));
        assert!(compile(vec![[0.0, 0.0], [0.0, 99.0]]).contains("point 1"));
        assert!(compile(vec![[0.0, 0.0], [0.0, 0.0]]).contains("the same"));
    }

    #[test]
    fn devices_of_an_area_travel_on_different_streets() {
        let definition = serde_json::json!({
            "area": {"center": [8.54, 47.37], "radius_km": 5.0}, "speed_kmh": [20, 50],
        });
        let definition: RouteDefinition = serde_json::from_value(definition).expect("well-formed");
        let route = Route::compile(&definition).expect("well-formed");
        let position = |device, seconds: u64| {
            let key = RandomKey::of_device(1, 0, device);
            match route.value(Component::Whole, seconds * 1_000_000_000, key) {
                StateValue::Position {
                    longitude,
                    latitude,
                } => [longitude, latitude],
                other => panic!("{other:?}"),
            }
        };
        for device in 0..100 {
            let moved_m = distance_m(position(device, 100), position(device, 101));
            // Less at a corner.
            assert!((0.0..=50.0 / 3.6 + 0.1).contains(&moved_m), "{moved_m}");
            assert!(distance_m(position(device, 0), [8.54, 47.37]) <= 7_100.0);
            assert_ne!(position(device, 0), position(device + 1, 0));
        }
        let both = RouteDefinition {
            points: vec![[0.0, 0.0]],
            ..definition
        };
        assert!(Route::compile(&both).unwrap_err().contains("found both"));
    }
}
