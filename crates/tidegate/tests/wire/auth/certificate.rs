//! A client's certificate says who it is.

use crate::certificates::Authority;
use crate::support::{Connect, Node, Raw, temporary_directory};

use super::may_publish;

#[test]
fn a_name_of_the_certificate_becomes_the_client_id() {
    let authority = Authority::new(temporary_directory());
    let server = authority.issue_server("server");
    let config = format!(
        "[[listener]]\nname = \"mqtts\"\nbind = \"127.0.0.1:0\"\ntls = {{ certificate = \"{}\", private_key = \"{}\", \
         client_ca = \"{}\" }}\n\
         [[listener]]\nname = \"mqtt\"\nbind = \"127.0.0.1:0\"\n\
         [[auth.authenticator]]\ntype = \"certificate\"\nas = \"both\"\n\
         [[auth.rule]]\npermission = \"allow\"\n\
         topics = [\"id/${{clientid}}\", \"user/${{username}}\", \"cn/${{cert_common_name}}\"]\n",
        server.certificate.display(),
        server.key.display(),
        authority.certificate_path().display()
    );
    let node = Node::start_with_config(&[], &config);
    let device = authority.issue_client("device-7");
    let stream = authority
        .connect(node.address("mqtts"), Some(&device))
        .unwrap();
    let mut raw = Raw::over(stream, 5);
    let connack = raw.hand_shake(&Connect::new(5, "another").username("else"));
    assert_eq!(connack.reason, 0);
    for topic in ["id/device-7", "user/device-7", "cn/device-7"] {
        assert!(may_publish(&mut raw, topic), "{topic}");
    }
    assert!(!may_publish(&mut raw, "id/another") && !may_publish(&mut raw, "user/else"));
}
