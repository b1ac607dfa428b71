//! Who tries too often.

use super::{BANNED, SUCCESS, TRY_LATER, WRONG, hashed, log_in_as, login};
use crate::support::{Connect, Node, eventually, temporary_directory, unique};

fn with_ann(limits: &str) -> Node {
    let file = temporary_directory().join("passwords");
    std::fs::write(&file, format!("ann:{}\n", hashed("pencil"))).unwrap();
    let config = format!(
        "[auth]\n{limits}\n[[auth.authenticator]]\ntype = \"password_file\"\npath = \"{}\"\n",
        file.display()
    );
    Node::start_with_config(&[], &config)
}

#[test]
fn an_address_with_too_many_failed_logins_is_locked_out_for_a_while() {
    let node = with_ann("max_failed_logins_per_address = 3\nlockout_s = 2");
    for _ in 0..3 {
        assert_eq!(login(&node, "ann", "x"), WRONG);
    }
    assert_eq!(login(&node, "ann", "pencil"), TRY_LATER);
    eventually("the lock-out ends", || {
        login(&node, "ann", "pencil") == SUCCESS
    });
}

#[test]
fn a_user_with_too_many_failed_logins_is_locked_out_and_others_are_not() {
    let node = with_ann("max_failed_logins_per_user = 2\nmax_failed_logins_per_address = 0");
    for _ in 0..2 {
        assert_eq!(login(&node, "ann", "x"), WRONG);
    }
    assert_eq!(login(&node, "ann", "pencil"), TRY_LATER);
    assert_eq!(login(&node, "bob", "x"), WRONG);
}

#[test]
fn a_client_that_comes_and_goes_too_often_is_banned_for_a_while() {
    let node = with_ann("flapping_disconnects = 3\nflapping_ban_s = 2");
    let client_id = unique("flap");
    let connect = || log_in_as(&node, &Connect::new(5, &client_id));
    for _ in 0..3 {
        let (raw, connack) = connect();
        assert_eq!(connack.reason, SUCCESS);
        raw.disconnect();
    }
    eventually("it is banned", || connect().1.reason == BANNED);
    assert_eq!(
        log_in_as(&node, &Connect::new(5, unique("other"))).1.reason,
        SUCCESS
    );
    eventually("the ban ends", || connect().1.reason == SUCCESS);
}

#[test]
fn logins_of_all_clients_have_a_rate() {
    let node = with_ann("max_logins_per_s = 5");
    let tries = 50;
    let rejected = (0..tries)
        .map(|_| log_in_as(&node, &Connect::new(5, unique("c"))).1.reason)
        .filter(|reason| *reason == TRY_LATER)
        .count();
    assert!(rejected > 0, "{tries} at once are more than 5 a second");
    eventually("later there is room", || {
        log_in_as(&node, &Connect::new(5, unique("c"))).1.reason == SUCCESS
    });
}
