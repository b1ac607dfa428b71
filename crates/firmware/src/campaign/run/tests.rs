//! Campaigns over simulated devices: waves, thresholds, pauses, windows and restarts.

use serde_json::{Value, json};

use super::*;

const START_MS: u64 = 1_700_000_000_000;

fn campaign(fields: Value, waves: &[(u16, u32)]) -> CampaignRun {
    let mut definition = json!({"package": "p"});
    for (name, value) in fields.as_object().expect("an object") {
        definition[name] = value.clone();
    }
    let definition = CampaignDefinition::read(&definition).expect("valid");
    let mut devices = BTreeMap::new();
    for (wave, count) in waves {
        for _ in 0..*count {
            let no = DeviceNo(devices.len() as u32);
            devices.insert(no, CampaignDevice::waiting(*wave));
        }
    }
    let progress = CampaignProgress {
        status: CampaignStatus::Running,
        reason: None,
        settled: (0, 0),
        changed_at_ms: START_MS,
    };
    CampaignRun::new(definition, progress, devices, START_MS)
}

/// Lets time pass second by second; each device reports 10 s after it was notified. Returns the seconds until the
/// campaign stops, and the greatest number of devices that were notified within a minute.
fn simulate(run: &mut CampaignRun, fails: impl Fn(DeviceNo) -> bool) -> (u64, usize) {
    let mut reports: BTreeMap<u64, Vec<DeviceNo>> = BTreeMap::new();
    let mut notified: Vec<(u64, usize)> = Vec::new();
    for second in 0..100_000 {
        let now_ms = START_MS + second * 1000;
        for no in reports.remove(&second).unwrap_or_default() {
            let result = match fails(no) {
                true => Err("broken".to_owned()),
                false => Ok(()),
            };
            run.record_result(no, result, now_ms);
        }
        let started = run.advance(now_ms);
        notified.push((second, started.len()));
        reports.entry(second + 10).or_default().extend(started);
        if run.progress().status != CampaignStatus::Running {
            let per_minute = notified
                .windows(60)
                .map(|all| all.iter().map(|(_, count)| count).sum());
            return (second, per_minute.max().unwrap_or(0));
        }
    }
    panic!("it does not end: {:?}", run.counts());
}

#[test]
fn a_campaign_of_which_a_third_fails_halts_as_configured() {
    let fields = json!({"min_success_percent": 80, "min_ended": 50, "max_attempts": 1,
        "max_devices_per_minute": 600});
    let mut run = campaign(fields, &[(0, 1000)]);
    simulate(&mut run, |no| no.0 % 3 == 0);
    let counts = run.counts();
    assert_eq!(run.progress().status, CampaignStatus::Halted);
    let ended = counts.succeeded + counts.failed;
    // It reacts at the 50th result; devices that were notified before may still end.
    assert!((50..60).contains(&ended), "{counts:?}");
    assert!(counts.waiting > 800, "{counts:?}");
    let reason = run.progress().reason.clone().expect("a reason");
    assert!(reason.contains("less than 80 %"), "{reason}");
    assert!(run.advance(START_MS + 200_000_000).is_empty(), "halted");
}

#[test]
fn a_campaign_with_enough_success_completes_within_its_rate() {
    let fields =
        json!({"min_success_percent": 60, "max_attempts": 2, "max_devices_per_minute": 120});
    let mut run = campaign(fields, &[(0, 10), (1, 90), (2, 900)]);
    let (seconds, per_minute) = simulate(&mut run, |no| no.0 % 3 == 0);
    assert_eq!(run.progress().status, CampaignStatus::Completed);
    let counts = run.counts();
    assert_eq!((counts.succeeded, counts.failed), (666, 334));
    assert!(per_minute <= 122, "{per_minute}");
    // Each third device was notified twice.
    assert!((1334 / 2..800).contains(&seconds), "{seconds}");
    assert!(run.devices().values().all(|device| device.attempts <= 2));
}

#[test]
fn a_wave_begins_when_the_wave_before_has_ended_and_succeeded() {
    let fields = json!({"max_attempts": 1, "max_devices_per_minute": 0, "min_ended": 100});
    let mut run = campaign(fields, &[(0, 3), (1, 50)]);
    assert_eq!(run.advance(START_MS).len(), 3);
    for no in 0..2 {
        run.record_result(DeviceNo(no), Ok(()), START_MS);
    }
    assert!(run.advance(START_MS + 1000).is_empty());
    run.record_result(DeviceNo(2), Err("broken".to_owned()), START_MS);
    assert!(run.advance(START_MS + 2000).is_empty());
    assert_eq!(
        run.progress().status,
        CampaignStatus::Halted,
        "2 of 3 are less than 90 %"
    );
    assert!(run.resume(START_MS + 3000));
    assert_eq!(
        run.advance(START_MS + 3000).len(),
        50,
        "the failure no longer counts"
    );
}

#[test]
fn silence_is_a_failure_and_repeated() {
    let fields = json!({"max_attempts": 2, "timeout_s": 60, "max_devices_per_minute": 0});
    let mut run = campaign(fields, &[(0, 1)]);
    let device = DeviceNo(0);
    assert_eq!(run.advance(START_MS), [device]);
    assert!(run.advance(START_MS + 59_999).is_empty());
    assert_eq!(
        run.advance(START_MS + 60_000),
        [device],
        "the second attempt"
    );
    assert!(run.is_target_of(device));
    run.record_result(device, Ok(()), START_MS + 70_000);
    run.record_result(device, Err("late".to_owned()), START_MS + 71_000);
    assert!(run.advance(START_MS + 72_000).is_empty());
    assert_eq!(run.progress().status, CampaignStatus::Completed);
    assert_eq!(run.counts().succeeded, 1);
}

#[test]
fn deleted_devices_are_cancelled_and_do_not_count() {
    let fields = json!({"max_attempts": 1, "max_devices_per_minute": 0, "min_ended": 1});
    let mut run = campaign(fields, &[(0, 3), (1, 1)]);
    assert_eq!(run.advance(START_MS).len(), 3);
    for no in [0, 1, 3] {
        assert!(run.device_deleted(DeviceNo(no), Some("gone"), START_MS + 1000));
        let device = &run.devices()[&DeviceNo(no)];
        assert_eq!(device.state, CampaignDeviceState::Cancelled);
        assert_eq!(device.error.as_deref(), Some("the device was deleted"));
        assert_eq!(device.deleted_id.as_deref(), Some("gone"));
        assert!(!run.is_target_of(DeviceNo(no)));
    }
    assert!(!run.device_deleted(DeviceNo(9), Some("other"), START_MS + 1000));
    run.record_result(DeviceNo(2), Ok(()), START_MS + 2000);
    run.advance(START_MS + 2000);
    run.advance(START_MS + 3000);
    assert_eq!(run.progress().status, CampaignStatus::Completed);
    assert!(run.device_deleted(DeviceNo(2), Some("later"), START_MS + 4000));
    let ended = &run.devices()[&DeviceNo(2)];
    assert_eq!(
        ended.state,
        CampaignDeviceState::Succeeded,
        "a result stays"
    );
    assert_eq!(ended.deleted_id.as_deref(), Some("later"));
    let counts = run.counts();
    assert_eq!(
        (counts.succeeded, counts.failed, counts.cancelled),
        (1, 0, 3)
    );
}

#[test]
fn a_campaign_is_paused_resumed_and_cancelled() {
    let mut run = campaign(json!({"max_devices_per_minute": 60}), &[(0, 100)]);
    assert_eq!(run.advance(START_MS).len(), 1);
    assert!(run.pause(START_MS) && !run.pause(START_MS));
    assert!(run.advance(START_MS + 60_000).is_empty());
    assert!(run.resume(START_MS + 60_000) && !run.resume(START_MS + 60_000));
    assert_eq!(
        run.advance(START_MS + 61_000).len(),
        1,
        "nothing is made up for"
    );
    let open = run.cancel(START_MS + 62_000).expect("open devices");
    assert_eq!((open.len(), run.counts().cancelled), (100, 100));
    assert!(run.cancel(START_MS + 63_000).is_none());
    assert!(!run.is_target_of(DeviceNo(0)) && run.advance(START_MS + 63_000).is_empty());
}

#[test]
fn devices_are_notified_within_the_window_only() {
    // START_MS is 22:13:20 UTC.
    let window = json!({"from": "22:00", "to": "22:14"});
    let mut run = campaign(
        json!({"window": window, "max_devices_per_minute": 60}),
        &[(0, 1000)],
    );
    let mut notified = 0;
    for second in 0..3600 {
        notified += run.advance(START_MS + second * 1000).len();
    }
    assert_eq!(notified, 40);
    assert!(
        !run.advance(START_MS + 86_400_000).is_empty(),
        "the next day"
    );
}

#[test]
fn a_restart_continues_where_it_was() {
    let fields = json!({"timeout_s": 60, "max_devices_per_minute": 0, "waves": []});
    let mut run = campaign(fields, &[(0, 2), (1, 2)]);
    run.advance(START_MS);
    run.record_result(DeviceNo(0), Ok(()), START_MS + 1000);
    let changes = run.take_changes();
    assert_eq!(changes.devices.len(), 2);
    assert!(run.take_changes().devices.is_empty());
    let (definition, progress) = (run.definition().clone(), run.progress().clone());
    let mut again = CampaignRun::new(definition, progress, run.devices().clone(), START_MS + 5000);
    assert_eq!((again.counts(), again.wave()), (run.counts(), Some(0)));
    assert_eq!(
        again.advance(START_MS + 60_000),
        [DeviceNo(1)],
        "its time is over"
    );
    again.record_result(DeviceNo(1), Ok(()), START_MS + 61_000);
    assert_eq!(again.advance(START_MS + 61_000).len(), 2, "the next wave");
}
