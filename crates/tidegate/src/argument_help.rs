//! Descriptions of arguments that mean the same in all commands. A command describes only what is particular about its own.

use clap::{Arg, Command};

/// Describes the arguments without a description, in a command and all below it.
pub(crate) fn describe_arguments(command: Command) -> Command {
    let list = lists(&command).then(|| command.get_name().to_owned());
    describe_below(command, list.as_deref())
}

fn lists(command: &Command) -> bool {
    command.find_subcommand("list").is_some()
}

/// `list` is the nearest command above with a subcommand `list`, which shows the ids of objects.
fn describe_below(command: Command, list: Option<&str>) -> Command {
    let names: Vec<String> = (command.get_subcommands())
        .map(|each| each.get_name().to_owned())
        .collect();
    let mut command = command.mut_args(|argument| match argument.get_help() {
        Some(_) => argument,
        None => match description(&argument, list) {
            Some(description) => argument.help(description),
            None => argument,
        },
    });
    for name in names {
        command = command.mut_subcommand(name, |below| {
            let own = lists(&below).then(|| below.get_name().to_owned());
            describe_below(below, own.as_deref().or(list))
        });
    }
    command
}

fn description(argument: &Arg, list: Option<&str>) -> Option<String> {
    let value_name = match argument.get_value_names() {
        Some([name, ..]) => name.to_string(),
        _ => argument.get_id().as_str().to_uppercase(),
    };
    let fixed = match (value_name.as_str(), list) {
        ("ID" | "NAME", Some(list)) => {
            return Some(format!("Name or id, as `{list} list` shows it"));
        }
        ("IDS", Some(list)) => return Some(format!("Ids, as `{list} list` shows them")),
        ("ID", None) => "Id of the object",
        ("NAME", None) => "Name of the object",
        ("CARD", _) => "Id of a card of the dashboard",
        ("CLIENT_ID", _) => "MQTT client id",
        ("CONNECTION_ID", _) => "Number that `connections` shows",
        ("DEVICE", _) => "Id of the device",
        ("DEVICES", _) => "Ids of the devices",
        ("FILE", _) => "Path of the file",
        ("FUNCTION", _) => "Function of the thing model",
        ("GROUP", _) => "Value of the field `group` of devices",
        ("KEY", _) => "Key of the setting, as `config reference` lists it",
        ("KEYS", _) => "Keys of properties",
        ("KEY=VALUE", _) => "Tag of the device; may be repeated",
        ("KIND", _) => "Kind of the content",
        ("METHOD", _) => "Method that the device executes",
        ("NAME=VALUE", _) => "Fields; `fields` lists them",
        ("NAMESPACE", _) => "Id of the namespace",
        ("PARENT", _) => "Id of the gateway of the device",
        ("PAYLOAD" | "TEXT", _) => "Payload of the message",
        ("PRODUCT", _) => "Id of the product",
        ("QOS", _) => "Quality of service: 0, 1 or 2",
        ("SCOPE", _) => "Scope of the attributes",
        ("SHARE", _) => "Id of the share link, as `shares` shows it",
        ("SHELL", _) => "Shell that reads the script",
        ("SINK", _) => "Name of the sink",
        ("TOPIC", _) => "Topic name",
        ("TOPIC_FILTER", _) => "Topic filter, such as sensors/+/temperature",
        ("USERNAME", _) => "User name",
        ("VALUE", _) => "New value; without it, the command prompts for it",
        _ => return None,
    };
    Some(fixed.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn collect_undescribed(command: &Command, path: &str, found: &mut Vec<String>) {
        for argument in command.get_arguments() {
            if argument.get_help().is_none() {
                found.push(format!("{path}: {}", argument.get_id()));
            }
        }
        for below in (command.get_subcommands()).filter(|below| !below.is_hide_set()) {
            collect_undescribed(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    #[test]
    fn every_argument_has_a_description() {
        let command = describe_arguments(Cli::command());
        let mut found = Vec::new();
        collect_undescribed(&command, "tidegate", &mut found);
        assert!(found.is_empty(), "without description: {found:#?}");
    }
}
