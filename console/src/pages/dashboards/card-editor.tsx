import {
  Button,
  Drawer,
  Group,
  MultiSelect,
  NumberInput,
  SegmentedControl,
  Select,
  Stack,
  TagsInput,
  Textarea,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { api, unwrap, useRead } from '../../api/client';
import { ObjectSelect } from '../../ui/object-select';
import type { Card, CardConfig, CardSource } from './dashboard';

const telemetryKinds = ['statistic', 'gauge', 'chart', 'table', 'map'];
/** Kinds that also show topics or metrics of the node. */
const originKinds = ['statistic', 'gauge', 'chart', 'table'];

type Origin = 'devices' | 'topics' | 'node';

const mapKeys = ['latitude', 'longitude'];

/** What a card shows and how. */
export function CardEditor({
  card,
  isOfNode,
  onSave,
  onClose,
}: {
  card: Card;
  /** Whether the dashboard belongs to no namespace, and may show topics and metrics of the node. */
  isOfNode: boolean;
  onSave: (card: Card) => void;
  onClose: () => void;
}) {
  const { t } = useLingui();
  const [title, setTitle] = useState(card.title);
  const [config, setConfig] = useState<CardConfig>(card.config);
  const first = card.sources[0];
  const [device, setDevice] = useState(first && 'device' in first ? first.device : undefined);
  const [group, setGroup] = useState(first && 'device_group' in first ? first.device_group : undefined);
  const [keys, setKeys] = useState(first?.type === 'telemetry' ? first.keys : card.kind === 'map' ? mapKeys : []);
  const [subject, setSubject] = useState(first?.type === 'alarms' ? 'alarms' : 'devices');
  const [origin, setOrigin] = useState<Origin>(
    first?.type === 'topics' || first?.type === 'node' ? first.type : 'devices',
  );
  const [topics, setTopics] = useState(first?.type === 'topics' ? first.topics : []);
  const [metrics, setMetrics] = useState(first?.type === 'node' ? first.metrics : []);
  const hasOrigins = isOfNode && originKinds.includes(card.kind);
  const isTelemetry = telemetryKinds.includes(card.kind) && origin === 'devices';
  const isAlarms = card.kind === 'status' && subject === 'alarms';
  const needsDevice = isTelemetry || card.kind === 'status' || card.kind === 'control';
  const latest = useRead(
    ['devices', 'latest', device],
    (signal) =>
      unwrap(api.GET('/api/v1/devices/{id}/telemetry/latest', { params: { path: { id: device ?? '' } }, signal })),
    { enabled: isTelemetry && device !== undefined },
  );
  const set = (change: Partial<CardConfig>) => setConfig((previous) => ({ ...previous, ...change }));
  const number = (value: string | number) => (value === '' ? undefined : Number(value));
  const target = group ? { device_group: group } : device ? { device } : null;
  const sources = (): CardSource[] => {
    if (origin === 'topics') return topics.length > 0 ? [{ type: 'topics', topics }] : [];
    if (origin === 'node') return metrics.length > 0 ? [{ type: 'node', metrics }] : [];
    if (isAlarms) return [{ type: 'alarms', ...(device ? { device } : {}) }];
    if (!target || !needsDevice) return [];
    if (isTelemetry) return keys.length > 0 ? [{ type: 'telemetry', ...target, keys }] : [];
    return [{ type: 'devices', ...target }];
  };
  const isComplete = (origin === 'devices' && !needsDevice) || isAlarms || sources().length > 0;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const used = Object.entries(config).filter(([, value]) => value !== undefined && value !== '');
    onSave({ ...card, title, config: Object.fromEntries(used), sources: sources() });
  };
  return (
    <Drawer opened onClose={onClose} position="right" title={<Trans>Card</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            label={t`Title`}
            value={title}
            maxLength={200}
            data-autofocus
            onChange={(event) => setTitle(event.currentTarget.value)}
          />
          {card.kind === 'status' && (
            <SegmentedControl
              aria-label={t`What the card shows`}
              value={subject}
              onChange={setSubject}
              data={[
                { value: 'devices', label: t`Devices` },
                { value: 'alarms', label: t`Alarms` },
              ]}
            />
          )}
          {hasOrigins && (
            <Select
              label={t`Shows values of`}
              allowDeselect={false}
              value={origin}
              onChange={(next) => setOrigin(next as Origin)}
              data={[
                { value: 'devices', label: t`Devices` },
                // Charts need a history, which topics do not have.
                ...(card.kind === 'chart' ? [] : [{ value: 'topics', label: t`Topics` }]),
                { value: 'node', label: t`The node` },
              ]}
            />
          )}
          {origin === 'topics' && (
            <>
              <TopicsField value={topics} onChange={setTopics} />
              <SegmentedControl
                aria-label={t`What the card shows`}
                value={config.shows ?? 'message'}
                onChange={(shows) => set({ shows: shows as CardConfig['shows'] })}
                data={[
                  { value: 'message', label: t`Last message` },
                  { value: 'rate', label: t`Messages per second` },
                ]}
              />
            </>
          )}
          {origin === 'node' && <MetricsField value={metrics} onChange={setMetrics} />}
          {needsDevice && (
            <DeviceField
              value={device ?? null}
              isDisabled={group !== undefined}
              isRequired={!isAlarms && group === undefined}
              onChange={(next) => setDevice(next ?? undefined)}
            />
          )}
          {needsDevice && !isAlarms && card.kind !== 'control' && (
            <ObjectSelect
              kind="device-groups"
              label={t`or a group`}
              required={false}
              value={group}
              onChange={(next) => setGroup(next as string | undefined)}
            />
          )}
          {isTelemetry && (
            <TagsInput
              label={t`Keys`}
              required
              description={card.kind === 'map' ? t`The keys of the position.` : undefined}
              data={Object.keys(latest.data?.values ?? {}).sort()}
              value={keys}
              acceptValueOnBlur
              onChange={setKeys}
            />
          )}
          {card.kind === 'text' && (
            <Textarea
              label={t`Text`}
              autosize
              minRows={4}
              maxLength={8000}
              value={config.text ?? ''}
              onChange={(event) => set({ text: event.currentTarget.value })}
            />
          )}
          {card.kind === 'live_messages' && (
            <TextInput
              label={t`Topic filter`}
              required
              classNames={{ input: 'mono' }}
              placeholder="plant/#"
              value={config.topic_filter ?? ''}
              onChange={(event) => set({ topic_filter: event.currentTarget.value })}
            />
          )}
          {card.kind === 'control' && (
            <>
              <Select
                label={t`Control`}
                allowDeselect={false}
                value={config.control ?? 'button'}
                onChange={(next) => set({ control: next as CardConfig['control'] })}
                data={[
                  { value: 'switch', label: t`Switch` },
                  { value: 'slider', label: t`Slider` },
                  { value: 'number', label: t`Number` },
                  { value: 'button', label: t`Button` },
                ]}
              />
              <TextInput
                label={t`Method of the command`}
                required
                value={config.method ?? ''}
                onChange={(event) => set({ method: event.currentTarget.value })}
              />
            </>
          )}
          {originKinds.includes(card.kind) || card.kind === 'control' ? (
            <TextInput
              label={t`Unit`}
              maxLength={32}
              value={config.unit ?? ''}
              onChange={(event) => set({ unit: event.currentTarget.value })}
            />
          ) : null}
          {(card.kind === 'gauge' || ['slider', 'number'].includes(config.control ?? '')) && (
            <Group grow>
              <NumberInput
                label={t`Minimum`}
                value={config.min ?? ''}
                placeholder="0"
                onChange={(value) => set({ min: number(value) })}
              />
              <NumberInput
                label={t`Maximum`}
                value={config.max ?? ''}
                placeholder="100"
                onChange={(value) => set({ max: number(value) })}
              />
            </Group>
          )}
          {['statistic', 'gauge', 'table'].includes(card.kind) && (
            <NumberInput
              label={t`Digits after the point`}
              min={0}
              max={6}
              value={config.digits ?? ''}
              placeholder="2"
              onChange={(value) => set({ digits: number(value) })}
            />
          )}
          <Group justify="flex-end">
            <Button type="submit" disabled={!isComplete}>
              <Trans>Apply</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
    </Drawer>
  );
}

interface NamesFieldProps {
  value: string[];
  onChange: (value: string[]) => void;
}

/** At most as many as a source may have. */
const maxNames = 50;

/** Exact topics; those with a part of the typed text are offered. */
function TopicsField({ value, onChange }: NamesFieldProps) {
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

function MetricsField({ value, onChange }: NamesFieldProps) {
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

function DeviceField({
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
