import { ActionIcon, Button, Menu, Stack, Text, Title, Tooltip } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconArrowDown, IconArrowUp, IconPlus, IconTrash } from '@tabler/icons-react';
import { withoutKinds } from '../../api/descriptions';
import type { Fields } from '../../api/objects';
import type { Schema, SchemaScope } from '../../api/json-schema';
import { choiceList } from '../../api/schema-variants';
import { actionKindName, actionKindText } from '../../api/value-names';
import { GeneratedForm, type Control } from '../../ui/schema-form';

export type Action = Fields & { kind: string };

/** Fields that most actions use. */
const usual = ['topic', 'endpoint', 'sink', 'device', 'name', 'severity', 'payload', 'qos', 'retain'];

/** The fields of an action of one kind; the schema says of each field which kinds have it. */
export function actionSchema(action: Schema, kind: string): Schema {
  const properties = Object.entries(action.properties ?? {}).filter(([name, { description = '' }]) => {
    if (name === 'kind') return false;
    const kinds = /kinds? ([\w ,]+) only/.exec(description)?.[1];
    return kinds === undefined || kinds.split(/\s*,\s*|\s+and\s+/).includes(kind);
  });
  const required: Record<string, string[]> = { republish: ['topic'], sink: ['sink'], alarm: ['name'] };
  return {
    type: 'object',
    properties: Object.fromEntries(
      properties.map(([name, schema]) => [
        name,
        { ...schema, description: schema.description && withoutKinds(schema.description) },
      ]),
    ),
    required: required[kind] ?? [],
  };
}

const fallbackNames = (actions: { kind?: string }[]) => actions.map(({ kind = '' }) => actionKindName(kind)).join(', ');

export function ActionsEditor({
  schema,
  scope,
  actions,
  onChange,
  controls,
  isReadOnly,
}: {
  schema: Schema;
  scope: SchemaScope;
  actions: Action[];
  onChange: (actions: Action[]) => void;
  controls: Record<string, Control>;
  isReadOnly: boolean;
}) {
  const { t } = useLingui();
  const kinds = choiceList(schema.properties?.kind ?? {})?.map(({ value }) => value) ?? [];
  const move = (from: number, to: number) => {
    const next = [...actions];
    const [moved] = next.splice(from, 1);
    if (moved) next.splice(to, 0, moved);
    onChange(next);
  };
  const add = !isReadOnly && (
    <Menu position="bottom-start">
      <Menu.Target>
        <Button variant="default" leftSection={<IconPlus size={14} />}>
          <Trans>Add an action</Trans>
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {kinds.map((kind) => (
          <Menu.Item key={kind} onClick={() => onChange([...actions, { kind }])}>
            <b>{actionKindName(kind)}</b>
            <Text size="xs" c="dimmed">
              {actionKindText(kind)}
            </Text>
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
  return (
    <Stack gap="sm">
      {actions.length === 0 && (
        <Text size="sm" c="dimmed">
          <Trans>No action: the outputs are visible in the trace, and other rules can use them.</Trans>
        </Text>
      )}
      {actions.map((action, index) => (
        <section key={index} className="rule-action" aria-label={t`Action ${index + 1}`}>
          <div className="row">
            <Title order={3} className="grow">
              {index + 1}. {actionKindName(action.kind)}
            </Title>
            {!isReadOnly && (
              <>
                <Tooltip label={t`Earlier`}>
                  <ActionIcon
                    size="sm"
                    aria-label={t`Move action ${index + 1} up`}
                    disabled={index === 0}
                    onClick={() => move(index, index - 1)}
                  >
                    <IconArrowUp size={14} />
                  </ActionIcon>
                </Tooltip>
                <Tooltip label={t`Later`}>
                  <ActionIcon
                    size="sm"
                    aria-label={t`Move action ${index + 1} down`}
                    disabled={index === actions.length - 1}
                    onClick={() => move(index, index + 1)}
                  >
                    <IconArrowDown size={14} />
                  </ActionIcon>
                </Tooltip>
                <Tooltip label={t`Remove`}>
                  <ActionIcon
                    size="sm"
                    aria-label={t`Remove action ${index + 1}`}
                    onClick={() => onChange(actions.filter((_, at) => at !== index))}
                  >
                    <IconTrash size={14} />
                  </ActionIcon>
                </Tooltip>
              </>
            )}
          </div>
          <GeneratedForm
            schema={actionSchema(schema, action.kind)}
            scope={scope}
            value={action}
            onChange={(next) =>
              onChange(actions.map((each, at) => (at === index ? { ...next, kind: each.kind } : each)))
            }
            hidden={['fallback']}
            first={usual}
            controls={controls}
          />
          {Array.isArray(action.fallback) && action.fallback.length > 0 && (
            <Text size="xs" c="dimmed">
              <Trans>If it fails: {fallbackNames(action.fallback)}</Trans>
            </Text>
          )}
        </section>
      ))}
      {add && <div>{add}</div>}
    </Stack>
  );
}
