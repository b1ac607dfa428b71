//! Segments in any order, with repetitions and kills.

use proptest::prelude::*;

use super::*;

/// A step of a sender, or a kill of the node.
#[derive(Debug, Clone)]
enum Step {
    Write { start: usize, len: usize },
    WriteWithoutCommit { start: usize, len: usize },
    Kill,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..300_usize, 0..90_usize);
    prop_oneof![
        4 => range.clone().prop_map(|(start, len)| Step::Write { start, len }),
        1 => range.prop_map(|(start, len)| Step::WriteWithoutCommit { start, len }),
        1 => Just(Step::Kill),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the order of segments, repetitions and kills: what was acknowledged is there, and filling what the
    /// status reports as missing yields exactly the file.
    #[test]
    fn every_order_of_segments_and_kills_yields_the_file(
        steps in prop::collection::vec(step(), 1..24),
        always in any::<bool>(),
    ) {
        const SIZE: usize = 350;
        let content = bytes(SIZE);
        let fsync = if always { disk::Fsync::Always } else { disk::Fsync::default() };
        let mut node = Node::new(TransferSettings { fsync, ..settings() });
        let request = TransferRequest {
            size: Some(SIZE as u64),
            checksum: Some(FileDigest::of(&content)),
            ..request("f")
        };
        node.begin(&request).expect("begun");
        let owner = owner();
        let target = FileTarget::Transfer(&owner, "f");
        let mut acknowledged = [false; SIZE];
        for step in steps {
            match step {
                Step::Write { start, len } => {
                    let end = (start + len).min(SIZE);
                    node.write("f", start as u64, &content[start..end]).expect("written");
                    acknowledged[start..end].fill(true);
                }
                Step::WriteWithoutCommit { start, len } => {
                    let end = (start + len).min(SIZE);
                    drop(node.files.write(target, start as u64, &content[start..end], None));
                }
                Step::Kill => node.restart(),
                Step::Sync => node.files.sync(),
            }
        }
        node.restart();
        let status = node.files.status(target).expect("a status");
        for (start, end) in &status.missing {
            for at in *start..*end {
                prop_assert!(!acknowledged[at as usize], "byte {} was acknowledged", at);
            }
        }
        for (start, end) in status.missing {
            node.write("f", start, &content[start as usize..end as usize]).expect("written");
        }
        let info = node.finish("f", None).expect("complete");
        prop_assert_eq!(node.content(&info.id), content);
    }
}
