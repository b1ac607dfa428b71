//! The action that publishes an output as a message.

use hooks::MessageDraft;
use mqtt::{PropertiesBuf, Property, QoS};
use rules::{CompileOptions, Rule, RuleState, Value, ValueTemplate};

use crate::action_error::{ActionError, invalid_value};
use crate::action_input::ActionInput;
use crate::definition;
use crate::definition_error::RuleDefinitionError;
use crate::producer_context::ProducerContext;
use crate::rule_lineage::RuleLineage;
use crate::template::{ActionTemplate, FixedOrTemplate, render};

pub(crate) struct RepublishAction {
    topic: ActionTemplate,
    /// `None`: the output as JSON.
    payload: Option<ActionTemplate>,
    qos: FixedOrTemplate<QoS>,
    retain: FixedOrTemplate<bool>,
    user_properties: Box<[(Box<str>, ActionTemplate)]>,
    /// Yields a map of additional user properties.
    user_property_map: Option<ValueTemplate>,
    mqtt_properties: Box<[(Box<str>, ActionTemplate)]>,
    /// Rules do not see the message.
    is_direct: bool,
}

impl RepublishAction {
    pub(crate) fn compile(
        republish: &definition::RepublishDefinition,
        options: &CompileOptions,
        path: &str,
    ) -> Result<Self, RuleDefinitionError> {
        let compile = |field: &str, text: &str| {
            ActionTemplate::compile(text, options, &format!("{path}.{field}"))
        };
        let topic = compile("topic", &republish.topic)?;
        if let Some(constant) = topic.constant()
            && let Err(error) = mqtt::validate_topic_name(constant, &mqtt::TopicLimits::NONE)
        {
            return Err(RuleDefinitionError::new(
                format!("{path}.topic"),
                error.to_string(),
            ));
        }
        let qos = match republish.qos.parse::<u8>().ok().map(QoS::try_from) {
            Some(Ok(qos)) => FixedOrTemplate::Fixed(qos),
            _ => FixedOrTemplate::Template(compile("qos", &republish.qos)?),
        };
        let retain = match republish.retain.parse() {
            Ok(retain) => FixedOrTemplate::Fixed(retain),
            Err(_) => FixedOrTemplate::Template(compile("retain", &republish.retain)?),
        };
        let compile_all = |field: &str, pairs: &[(String, String)]| {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(name, value)| {
                Ok((
                    name.as_str().into(),
                    compile(&format!("{field}.{name}"), value)?,
                ))
            });
            pairs.collect::<Result<Box<[_]>, RuleDefinitionError>>()
        };
        let payload = republish.payload.as_deref();
        let user_property_map = republish.user_property_map.as_deref();
        Ok(Self {
            topic,
            payload: payload
                .map(|text| {
                    ActionTemplate::compile_content(text, options, &format!("{path}.payload"))
                })
                .transpose()?,
            qos,
            retain,
            user_properties: compile_all("user_properties", &republish.user_properties)?,
            user_property_map: user_property_map
                .map(|text| {
                    ValueTemplate::compile(text, options).map_err(|error| {
                        RuleDefinitionError::new(
                            format!("{path}.user_properties"),
                            error.to_string(),
                        )
                    })
                })
                .transpose()?,
            mqtt_properties: compile_all("mqtt_properties", &republish.mqtt_properties)?,
            is_direct: republish.direct_dispatch,
        })
    }

    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let mut templates = vec![&self.topic];
        templates.extend(&self.payload);
        for (_, template) in self.user_properties.iter().chain(&self.mqtt_properties) {
            templates.push(template);
        }
        let names = templates
            .iter()
            .map(|template| template.unknown_names(rule));
        names.flatten().collect()
    }

    pub(crate) fn run<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
    ) -> Result<(), ActionError> {
        let depth = made.lineage.depth().saturating_add(1);
        if made.lineage == RuleLineage::NO_REPUBLISH {
            return Err(ActionError::AboutDerivedMessage);
        }
        if depth > made.rule.max_republish_depth {
            return Err(ActionError::RepublishTooDeep(depth));
        }
        if stage.outgoing.content_bytes() > stage.max_outgoing_bytes {
            return Err(ActionError::OutgoingFull);
        }
        let mut topic = std::mem::take(&mut stage.topic);
        let mut payload = std::mem::take(&mut stage.text);
        let result = self.append_message(made, stage, (&mut topic, &mut payload), depth);
        (stage.topic, stage.text) = (topic, payload);
        result
    }

    fn append_message<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
        (topic, payload): (&mut Vec<u8>, &mut Vec<u8>),
        depth: u8,
    ) -> Result<(), ActionError> {
        let state = &mut stage.stateless_state;
        topic.clear();
        self.topic.render_name("topic", made, state, topic)?;
        let topic = validate_topic(topic)?;
        let qos = match &self.qos {
            FixedOrTemplate::Fixed(qos) => *qos,
            FixedOrTemplate::Template(template) => render_qos(template, made, state, payload)?,
        };
        let retain = match &self.retain {
            FixedOrTemplate::Fixed(retain) => *retain,
            FixedOrTemplate::Template(template) => {
                match render(template, made, state, payload)?.trim() {
                    "true" | "1" => true,
                    "false" | "0" | "" | "null" | "undefined" => false,
                    other => return Err(invalid_value("retain", other, "true or false")),
                }
            }
        };
        let mut properties = PropertiesBuf::new();
        self.fill_properties(made, state, payload, &mut properties)?;
        payload.clear();
        match &self.payload {
            Some(template) => drop(template.render(made, state, payload)?),
            None => made.output.write_json(payload),
        }
        let event = made.view.event();
        stage.outgoing.push(&MessageDraft {
            topic,
            payload,
            properties: &properties,
            qos,
            retain,
            client_id: event.client_id,
            username: event.username.unwrap_or_default(),
            tag: match self.is_direct {
                true => RuleLineage::IGNORED.0,
                false => RuleLineage::new(depth, made.rule.serial).0,
            },
        });
        Ok(())
    }

    fn fill_properties<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        state: &mut RuleState,
        text: &mut Vec<u8>,
        properties: &mut PropertiesBuf,
    ) -> Result<(), ActionError> {
        for (name, template) in &self.mqtt_properties {
            text.clear();
            // A property that is null is omitted.
            if template.render(made, state, text)?.nulls == 0 {
                push_property(name, text, properties)?;
            }
        }
        for (name, template) in &self.user_properties {
            push_user_property(name, render(template, made, state, text)?, properties)?;
        }
        if let Some(map) = &self.user_property_map {
            let arena = made.view.arena();
            let map = map.evaluate(&made.output, made.view, state)?;
            match map.parse_one_level(arena) {
                Value::Map(pairs) => {
                    for (name, value) in pairs {
                        push_user_property(name, value.text(arena), properties)?;
                    }
                }
                Value::Null => {}
                _ => {
                    return Err(invalid_value(
                        "user_properties",
                        map.type_name(),
                        "a map of names and texts",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Renders the QoS. Null is 0.
fn render_qos<'a>(
    template: &'a ActionTemplate,
    made: &ActionInput<'_, 'a>,
    state: &mut RuleState,
    text: &mut Vec<u8>,
) -> Result<QoS, ActionError> {
    text.clear();
    if template.render(made, state, text)?.nulls > 0 {
        return Ok(QoS::AtMostOnce);
    }
    let text = String::from_utf8_lossy(text);
    let qos = text.trim().parse::<u8>().ok();
    let qos = qos.and_then(|qos| QoS::try_from(qos).ok());
    qos.ok_or_else(|| invalid_value("qos", &text, "0, 1 or 2"))
}

fn push_user_property(
    name: &str,
    value: &str,
    properties: &mut PropertiesBuf,
) -> Result<(), ActionError> {
    let is_text = |text: &str| text.len() <= usize::from(u16::MAX) && !text.contains('\0');
    if !is_text(name) || !is_text(value) {
        return Err(invalid_value(
            "user_properties",
            name,
            "a text of at most 65,535 bytes",
        ));
    }
    properties.push(Property::UserProperty(name, value));
    Ok(())
}

/// Sets one of [`definition::MQTT_PROPERTIES`].
fn push_property(
    name: &str,
    value: &[u8],
    properties: &mut PropertiesBuf,
) -> Result<(), ActionError> {
    let text =
        std::str::from_utf8(value).map_err(|_| invalid_value("mqtt_properties", name, "text"))?;
    if text.len() > usize::from(u16::MAX) {
        return Err(invalid_value(
            "mqtt_properties",
            name,
            "at most 65,535 bytes",
        ));
    }
    properties.push(match name {
        "Payload-Format-Indicator" => match text.trim() {
            "0" => Property::PayloadFormatIndicator(0),
            "1" => Property::PayloadFormatIndicator(1),
            other => return Err(invalid_value("Payload-Format-Indicator", other, "0 or 1")),
        },
        "Message-Expiry-Interval" => {
            let seconds = text.trim().parse();
            let expected = "a number of seconds";
            let seconds =
                seconds.map_err(|_| invalid_value("Message-Expiry-Interval", text, expected))?;
            Property::MessageExpiryInterval(seconds)
        }
        "Response-Topic" => Property::ResponseTopic(validate_topic(value)?),
        "Correlation-Data" => Property::CorrelationData(value),
        _ if text.contains('\0') => {
            return Err(invalid_value("Content-Type", text, "text without NUL"));
        }
        _ => Property::ContentType(text),
    });
    Ok(())
}

fn validate_topic(topic: &[u8]) -> Result<&str, ActionError> {
    let rejected = |topic: &str, why: String| ActionError::InvalidTopic {
        topic: topic.chars().take(200).collect(),
        why,
    };
    let topic = std::str::from_utf8(topic)
        .map_err(|_| rejected(&String::from_utf8_lossy(topic), "it is not UTF-8".into()))?;
    if let Err(error) = mqtt::validate_topic_name(topic, &mqtt::TopicLimits::NONE) {
        return Err(rejected(topic, error.to_string()));
    }
    if topic.starts_with("$SYS/") || topic.starts_with("$delayed/") {
        return Err(rejected(
            topic,
            "topics of the node itself are reserved".into(),
        ));
    }
    Ok(topic)
}
