//! Random routes on a rectangular grid of streets, for vehicles without a list of points.

use crate::definition::AreaDefinition;
use crate::random::RandomKey;

const METRES_PER_DEGREE: f64 = 111_195.0;
/// Routes of a generator; each device travels on one of them.
const ROUTES: u32 = 256;
const MAX_RADIUS_KM: f64 = 500.0;
const MAX_STOPS: u16 = 100;
/// Within 85 degrees, so that degrees of longitude are not too short.
const MAX_LATITUDE: f64 = 85.0;
/// Seed of the streets: the same in every run, so that `--seed` changes only who travels where.
const STREET_SEED: u64 = 0;

/// Checks an area and makes its routes.
pub(super) fn routes(area: &AreaDefinition) -> Result<Vec<Vec<[f64; 2]>>, String> {
    let [longitude, latitude] = area.center;
    if longitude.abs() > 180.0 || latitude.abs() > MAX_LATITUDE {
        return Err(format!(
            "`center` is [{longitude}, {latitude}]; expected [longitude, latitude] in degrees, within {MAX_LATITUDE} degrees of \
             latitude"
        ));
    }
    if !(area.block_m > 0.0 && area.block_m <= area.radius_km * 1000.0) {
        return Err(format!(
            "`block_m` is {}; expected more than 0 and at most the radius",
            area.block_m
        ));
    }
    if area.radius_km > MAX_RADIUS_KM {
        return Err(format!(
            "`radius_km` is {}; expected at most {MAX_RADIUS_KM}",
            area.radius_km
        ));
    }
    if !(2..=MAX_STOPS).contains(&area.stops) {
        return Err(format!(
            "`stops` is {}; expected 2 to {MAX_STOPS}",
            area.stops
        ));
    }
    Ok((0..ROUTES).map(|number| route(area, number)).collect())
}

/// Corners from one random crossing to the next, first along one street and then along another, and back to the first.
fn route(area: &AreaDefinition, number: u32) -> Vec<[f64; 2]> {
    let key = RandomKey::of_device(STREET_SEED, 0, number);
    let blocks = (area.radius_km * 1000.0 / area.block_m).floor() as i64;
    let mut crossings: Vec<(i64, i64)> = Vec::new();
    let mut draw = 0;
    while crossings.len() < usize::from(area.stops) {
        let mut next = || {
            draw += 1;
            key.below(draw, 2 * blocks as u64 + 1) as i64 - blocks
        };
        let crossing = (next(), next());
        // The area is a circle. The route returns from the last crossing to the first one.
        let is_inside = crossing.0.pow(2) + crossing.1.pow(2) <= blocks.pow(2);
        let is_new = crossings.first() != Some(&crossing) && crossings.last() != Some(&crossing);
        if is_inside && is_new {
            crossings.push(crossing);
        }
    }
    let mut corners = Vec::new();
    for (at, from) in crossings.iter().enumerate() {
        let to = crossings[(at + 1) % crossings.len()];
        corners.push(*from);
        if from.0 != to.0 && from.1 != to.1 {
            corners.push((to.0, from.1));
        }
    }
    let [longitude, latitude] = area.center;
    let north = area.block_m / METRES_PER_DEGREE;
    let east = north / latitude.to_radians().cos();
    corners
        .into_iter()
        .map(|(x, y)| [longitude + x as f64 * east, latitude + y as f64 * north])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> AreaDefinition {
        AreaDefinition {
            center: [8.54, 47.37],
            radius_km: 5.0,
            stops: 6,
            block_m: 150.0,
        }
    }

    #[test]
    fn routes_follow_streets_within_the_area() {
        let routes = routes(&area()).expect("well-formed");
        assert_eq!(routes.len(), ROUTES as usize);
        assert_ne!(routes[0], routes[1]);
        for route in routes {
            assert!((6..=12).contains(&route.len()));
            let closed = [&route[..], &route[..1]].concat();
            for pair in closed.windows(2) {
                let [[a, b], [c, d]] = [pair[0], pair[1]];
                let (is_east, is_north) = ((a - c).abs() > 1e-9, (b - d).abs() > 1e-9);
                assert!(is_east != is_north, "{pair:?}");
                // A corner between two crossings of a circle may lie outside, but not outside the square.
                let north_m = (b - 47.37).abs() * METRES_PER_DEGREE;
                let east_m = (a - 8.54).abs() * METRES_PER_DEGREE * 47.37_f64.to_radians().cos();
                assert!(north_m <= 5000.0 && east_m <= 5000.0, "{pair:?}");
            }
        }
    }

    #[test]
    fn wrong_areas_are_refused() {
        let error = |change: fn(&mut AreaDefinition)| {
            let mut area = area();
            change(&mut area);
            routes(&area).unwrap_err()
        };
        assert!(error(|area| area.center = [8.0, 89.0]).contains("`center`"));
        assert!(error(|area| area.block_m = 0.0).contains("`block_m`"));
        assert!(error(|area| area.radius_km = 0.1).contains("`block_m`"));
        assert!(error(|area| area.radius_km = 1e6).contains("`radius_km`"));
        assert!(error(|area| area.stops = 1).contains("`stops`"));
    }
}
