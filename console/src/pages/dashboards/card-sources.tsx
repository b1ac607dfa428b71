/** Inputs for what a card reads. */

import { ActionIcon, Button, Fieldset, MultiSelect, SegmentedControl, Select, Stack, TagsInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconTrash } from '@tabler/icons-react';
import { useState } from 'react';
import { api, unwrap, useRead } from '../../api/client';
import { ObjectSelect } from '../../ui/object-select';
import type { AttributeScope } from './dashboard';
import { maxSources, newSource, withType, type SourceDraft, type SourceType } from './source-draft';

interface SourceListProps {
  value: SourceDraft[];
  onChange: (value: SourceDraft[]) => void;
  /** What the card can show. */
  types: SourceType[];
  /** Whether the card shows more than one source. */
  mayAdd: boolean;
  mayBeGroup: boolean;
  keysHelp?: string;
}

/** The sources of a card, which may be of different types. */
export function SourceList({ value, onChange, mayAdd, ...rest }: SourceListProps) {
  const { t } = useLingui();
  const [first] = value;
  if (!first) return null;
  const set = (index: number, next: SourceDraft) => onChange(value.map((each, at) => (at === index ? next : each)));
  const fields = (each: SourceDraft, index: number) => (
    <SourceFields value={each} onChange={(next) => set(index, next)} {...rest} />
  );
  if (!mayAdd) return fields(first, 0);
  return (
    <>
      {value.length === 1
        ? fields(first, 0)
        : value.map((each, index) => (
            <Fieldset key={index} legend={t`Source ${index + 1}`}>
              <Stack gap="sm">
                {fields(each, index)}
                <div>
                  <ActionIcon
                    aria-label={t`Remove source ${index + 1}`}
                    onClick={() => onChange(value.filter((_, at) => at !== index))}
                  >
                    <IconTrash size={15} />
                  </ActionIcon>
                </div>
              </Stack>
            </Fieldset>
          ))}
      {value.length < maxSources && (
        <div>
          <Button
            variant="default"
            leftSection={<IconPlus size={14} />}
            onClick={() => {
              const last = value[value.length - 1] ?? first;
              onChange([...value, { ...newSource(last.type, last.keys), scope: last.scope }]);
            }}
          >
            <Trans>Add a source</Trans>
          </Button>
        </div>
      )}
    </>
  );
}

function SourceFields({
  value,
  onChange,
  types,
  mayBeGroup,
  keysHelp,
}: Omit<SourceListProps, 'value' | 'onChange' | 'mayAdd'> & {
  value: SourceDraft;
  onChange: (value: SourceDraft) => void;
}) {
  const { t } = useLingui();
  const names: Record<SourceType, string> = {
    telemetry: t`Telemetry`,
    attributes: t`Attributes`,
    devices: t`States of devices`,
    alarms: t`Alarms`,
    topics: t`Topics`,
    node: t`Metrics of the node`,
  };
  const { type } = value;
  const hasDevice = type !== 'topics' && type !== 'node';
  return (
    <>
      {types.length > 1 && (
        <Select
          label={t`Shows`}
          allowDeselect={false}
          value={type}
          onChange={(next) => onChange(withType(value, next as SourceType))}
          data={types.map((each) => ({ value: each, label: names[each] }))}
        />
      )}
      {type === 'topics' && (
        <TopicsField value={value.names} onChange={(next) => onChange({ ...value, names: next })} />
      )}
      {type === 'node' && <MetricsField value={value.names} onChange={(next) => onChange({ ...value, names: next })} />}
      {hasDevice && (
        <DeviceField
          value={value.device ?? null}
          isDisabled={value.group !== undefined}
          isRequired={value.group === undefined && type !== 'alarms'}
          onChange={(next) => onChange({ ...value, device: next ?? undefined })}
        />
      )}
      {hasDevice && type !== 'alarms' && mayBeGroup && (
        <ObjectSelect
          kind="device-groups"
          label={t`or a group`}
          required={false}
          value={value.group}
          onChange={(next) => onChange({ ...value, group: next as string | undefined })}
        />
      )}
      {type === 'alarms' && (
        <ObjectSelect
          kind="products"
          label={t`Product`}
          required={false}
          value={value.product}
          onChange={(next) => onChange({ ...value, product: next as string | undefined })}
        />
      )}
      {type === 'attributes' && (
        <SegmentedControl
          aria-label={t`Scope of the attributes`}
          value={value.scope}
          onChange={(scope) => onChange({ ...value, scope: scope as AttributeScope })}
          data={[
            { value: 'client', label: t`Client` },
            { value: 'shared', label: t`Shared` },
            { value: 'server', label: t`Server` },
          ]}
        />
      )}
      {(type === 'telemetry' || type === 'attributes') && (
        <KeysField value={value} help={keysHelp} onChange={(keys) => onChange({ ...value, keys })} />
      )}
    </>
  );
}

/** Keys of telemetry or attributes; those that the device has are offered. */
function KeysField({
  value: { type, device, scope, keys },
  help,
  onChange,
}: {
  value: SourceDraft;
  help?: string;
  onChange: (keys: string[]) => void;
}) {
  const { t } = useLingui();
  const known = useRead(
    ['devices', 'keys', device, type, scope],
    async (signal) => {
      const id = device ?? '';
      if (type === 'attributes') {
        const path = { id, scope };
        const found = await unwrap(api.GET('/api/v1/devices/{id}/attributes/{scope}', { params: { path }, signal }));
        return found.data.map(({ key }) => key);
      }
      const latest = await unwrap(
        api.GET('/api/v1/devices/{id}/telemetry/latest', { params: { path: { id } }, signal }),
      );
      return Object.keys(latest.values);
    },
    { enabled: device !== undefined },
  );
  return (
    <TagsInput
      label={t`Keys`}
      required
      description={help}
      data={[...(known.data ?? [])].sort()}
      maxTags={maxNames}
      value={keys}
      acceptValueOnBlur
      onChange={onChange}
    />
  );
}

interface NamesFieldProps {
  value: string[];
  onChange: (value: string[]) => void;
}

/** At most as many as a source may have. */
const maxNames = 50;

/** Exact topics; those with a part of the typed text are offered. */
export function TopicsField({ value, onChange }: NamesFieldProps) {
  const { t } = useLingui();
  const [text, setText] = useState('');
  const found = useRead(
    ['published-topics', 'found', text],
    (signal) =>
      unwrap(api.GET('/api/v1/published-topics', { params: { query: { contains: text, limit: 20 } }, signal })),
    { enabled: text !== '' },
  );
  return (
    <TagsInput
      label={t`Topics`}
      required
      description={t`Without wildcards. Messages are shown from when the card is first opened.`}
      maxTags={maxNames}
      data={found.data?.data.map(({ topic }) => topic) ?? []}
      value={value}
      acceptValueOnBlur
      onSearchChange={setText}
      onChange={(topics) => onChange(topics.filter((topic) => !/[+#]/.test(topic)))}
    />
  );
}

export function MetricsField({ value, onChange }: NamesFieldProps) {
  const { t } = useLingui();
  const known = useRead(['node', 'metrics'], (signal) => unwrap(api.GET('/api/v1/node/metrics', { signal })));
  const options = known.data?.data.map(({ name }) => name) ?? [];
  return (
    <MultiSelect
      label={t`Metrics`}
      required
      searchable
      maxValues={maxNames}
      data={[...new Set([...value, ...options])]}
      value={value}
      onChange={onChange}
    />
  );
}

export function DeviceField({
  value,
  isDisabled,
  isRequired,
  onChange,
}: {
  value: string | null;
  isDisabled: boolean;
  isRequired: boolean;
  onChange: (value: string | null) => void;
}) {
  const { t } = useLingui();
  const [text, setText] = useState('');
  const found = useRead(
    ['devices', 'found', text],
    (signal) =>
      unwrap(api.GET('/api/v1/devices', { params: { query: { limit: 50, ...(text ? { text } : {}) } }, signal })),
    { keep: true },
  );
  const ids = (found.data?.data ?? []).map(({ id }) => id);
  return (
    <Select
      label={t`Device`}
      searchable
      clearable
      required={isRequired}
      disabled={isDisabled}
      onSearchChange={(next) => setText(next === value ? '' : next.trim())}
      filter={({ options }) => options}
      data={value !== null && !ids.includes(value) ? [value, ...ids] : ids}
      value={value}
      onChange={onChange}
      nothingFoundMessage={t`No device matches`}
    />
  );
}
