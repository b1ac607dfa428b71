/** Inputs for what a card reads. */

import { ActionIcon, Button, Fieldset, MultiSelect, Select, Stack, TagsInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconTrash } from '@tabler/icons-react';
import { useState } from 'react';
import { api, unwrap, useRead } from '../../api/client';
import { ObjectSelect } from '../../ui/object-select';
import type { CardSource } from './dashboard';

/** A device or a group, with the keys of its telemetry. */
export interface DeviceChoice {
  device?: string;
  group?: string;
  keys: string[];
}

export const targetOf = ({ device, group }: DeviceChoice) =>
  group ? { device_group: group } : device ? { device } : null;

export const choiceOf = (source: CardSource): DeviceChoice => ({
  ...('device' in source ? { device: source.device } : {}),
  ...('device_group' in source ? { group: source.device_group } : {}),
  keys: source.type === 'telemetry' ? source.keys : [],
});

const maxSources = 20;

interface DeviceChoicesProps {
  value: DeviceChoice[];
  onChange: (value: DeviceChoice[]) => void;
  /** Whether keys are asked for. */
  hasKeys: boolean;
  /** Whether the card shows more than one device. */
  mayAdd: boolean;
  mayBeGroup: boolean;
  keysHelp?: string;
  /** The keys of another device or group to begin with. */
  initialKeys: string[];
}

export function DeviceChoices({ value, onChange, mayAdd, initialKeys, ...rest }: DeviceChoicesProps) {
  const { t } = useLingui();
  const set = (index: number, next: DeviceChoice) => onChange(value.map((each, at) => (at === index ? next : each)));
  if (!mayAdd || value.length === 1) {
    const [first = { keys: initialKeys }] = value;
    return (
      <>
        <DeviceFields value={first} onChange={(next) => onChange([next, ...value.slice(1)])} {...rest} />
        {mayAdd && <AddDevice onClick={() => onChange([...value, { keys: first.keys }])} />}
      </>
    );
  }
  return (
    <>
      {value.map((each, index) => (
        <Fieldset key={index} legend={t`Device or group ${index + 1}`}>
          <Stack gap="sm">
            <DeviceFields value={each} onChange={(next) => set(index, next)} {...rest} />
            <div>
              <ActionIcon
                aria-label={t`Remove device or group ${index + 1}`}
                onClick={() => onChange(value.filter((_, at) => at !== index))}
              >
                <IconTrash size={15} />
              </ActionIcon>
            </div>
          </Stack>
        </Fieldset>
      ))}
      {value.length < maxSources && (
        <AddDevice onClick={() => onChange([...value, { keys: value[value.length - 1]?.keys ?? initialKeys }])} />
      )}
    </>
  );
}

function AddDevice({ onClick }: { onClick: () => void }) {
  return (
    <div>
      <Button variant="default" leftSection={<IconPlus size={14} />} onClick={onClick}>
        <Trans>Add a device or group</Trans>
      </Button>
    </div>
  );
}

function DeviceFields({
  value,
  onChange,
  hasKeys,
  mayBeGroup,
  keysHelp,
}: Pick<DeviceChoicesProps, 'hasKeys' | 'mayBeGroup' | 'keysHelp'> & {
  value: DeviceChoice;
  onChange: (value: DeviceChoice) => void;
}) {
  const { t } = useLingui();
  const { device, group, keys } = value;
  const latest = useRead(
    ['devices', 'latest', device],
    (signal) =>
      unwrap(api.GET('/api/v1/devices/{id}/telemetry/latest', { params: { path: { id: device ?? '' } }, signal })),
    { enabled: hasKeys && device !== undefined },
  );
  return (
    <>
      <DeviceField
        value={device ?? null}
        isDisabled={group !== undefined}
        isRequired={group === undefined}
        onChange={(next) => onChange({ ...value, device: next ?? undefined })}
      />
      {mayBeGroup && (
        <ObjectSelect
          kind="device-groups"
          label={t`or a group`}
          required={false}
          value={group}
          onChange={(next) => onChange({ ...value, group: next as string | undefined })}
        />
      )}
      {hasKeys && (
        <TagsInput
          label={t`Keys`}
          required
          description={keysHelp}
          data={Object.keys(latest.data?.values ?? {}).sort()}
          value={keys}
          acceptValueOnBlur
          onChange={(next) => onChange({ ...value, keys: next })}
        />
      )}
    </>
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
