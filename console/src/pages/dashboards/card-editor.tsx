import {
  Button,
  Drawer,
  Group,
  NumberInput,
  SegmentedControl,
  Select,
  Stack,
  Textarea,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { ObjectSelect } from '../../ui/object-select';
import {
  choiceOf,
  DeviceChoices,
  DeviceField,
  MetricsField,
  targetOf,
  TopicsField,
  type DeviceChoice,
} from './card-sources';
import { storedStates } from './card-values';
import { ChartFields } from './chart-fields';
import type { Card, CardConfig, CardSource } from './dashboard';
import { ValueStatesField } from './value-states';

const telemetryKinds = ['statistic', 'gauge', 'chart', 'table', 'map'];
/** Kinds that show several devices. */
const listKinds = ['chart', 'table', 'map', 'status'];
/** Kinds whose values can have states. */
const stateKinds = ['statistic', 'gauge', 'table', 'status'];
/** Kinds that also show topics or metrics of the node. */
const originKinds = ['statistic', 'gauge', 'chart', 'table'];

type Origin = 'devices' | 'topics' | 'node';
/** What a card of states shows. */
type Subject = 'devices' | 'telemetry' | 'alarms';

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
  const initialKeys = card.kind === 'map' ? mapKeys : [];
  const [devices, setDevices] = useState<DeviceChoice[]>(() => {
    const stored = card.sources.filter(({ type }) => type === 'telemetry' || type === 'devices').map(choiceOf);
    return stored.length > 0 ? stored : [{ keys: initialKeys }];
  });
  const [alarms, setAlarms] = useState<{ device?: string; product?: string }>(
    first?.type === 'alarms' ? { device: first.device, product: first.product } : {},
  );
  const [subject, setSubject] = useState<Subject>(
    first?.type === 'alarms' || first?.type === 'telemetry' ? first.type : 'devices',
  );
  const [origin, setOrigin] = useState<Origin>(
    first?.type === 'topics' || first?.type === 'node' ? first.type : 'devices',
  );
  const [topics, setTopics] = useState(first?.type === 'topics' ? first.topics : []);
  const [metrics, setMetrics] = useState(first?.type === 'node' ? first.metrics : []);
  const hasOrigins = isOfNode && originKinds.includes(card.kind);
  const isTelemetry =
    (telemetryKinds.includes(card.kind) && origin === 'devices') || (card.kind === 'status' && subject === 'telemetry');
  const isAlarms = card.kind === 'status' && subject === 'alarms';
  const needsDevice = isTelemetry || (card.kind === 'status' && !isAlarms) || card.kind === 'control';
  const hasStates = stateKinds.includes(card.kind) && (card.kind !== 'status' || isTelemetry);
  const set = (change: Partial<CardConfig>) => setConfig((previous) => ({ ...previous, ...change }));
  const number = (value: string | number) => (value === '' ? undefined : Number(value));
  const sources = (): CardSource[] => {
    if (origin === 'topics') return topics.length > 0 ? [{ type: 'topics', topics }] : [];
    if (origin === 'node') return metrics.length > 0 ? [{ type: 'node', metrics }] : [];
    if (isAlarms) return [{ ...alarms, type: 'alarms' }];
    if (!needsDevice) return [];
    return devices.flatMap((choice): CardSource[] => {
      const target = targetOf(choice);
      if (!target) return [];
      if (!isTelemetry) return [{ type: 'devices', ...target }];
      return choice.keys.length > 0 ? [{ type: 'telemetry', ...target, keys: choice.keys }] : [];
    });
  };
  const wanted = origin === 'devices' && needsDevice ? devices.length : 1;
  const isComplete = (origin === 'devices' && !needsDevice) || isAlarms || sources().length === wanted;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const states = storedStates(config.states ?? []);
    const used = Object.entries({ ...config, states: hasStates && states.length > 0 ? states : undefined }).filter(
      ([, value]) => value !== undefined && value !== '',
    );
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
              onChange={(next) => setSubject(next as Subject)}
              data={[
                { value: 'devices', label: t`Devices` },
                { value: 'telemetry', label: t`Values` },
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
          {isAlarms && (
            <>
              <DeviceField
                value={alarms.device ?? null}
                isDisabled={false}
                isRequired={false}
                onChange={(device) => setAlarms({ ...alarms, device: device ?? undefined })}
              />
              <ObjectSelect
                kind="products"
                label={t`Product`}
                required={false}
                value={alarms.product}
                onChange={(product) => setAlarms({ ...alarms, product: product as string | undefined })}
              />
            </>
          )}
          {needsDevice && (
            <DeviceChoices
              value={devices}
              onChange={setDevices}
              hasKeys={isTelemetry}
              mayAdd={listKinds.includes(card.kind)}
              mayBeGroup={card.kind !== 'control'}
              keysHelp={card.kind === 'map' ? t`The keys of the position.` : undefined}
              initialKeys={initialKeys}
            />
          )}
          {card.kind === 'chart' && (
            <ChartFields config={config} set={set} devices={origin === 'devices' ? devices : []} />
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
          {originKinds.includes(card.kind) || card.kind === 'control' || (card.kind === 'status' && isTelemetry) ? (
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
          {['statistic', 'gauge', 'table', 'chart'].includes(card.kind) && (
            <NumberInput
              label={t`Digits after the point`}
              min={0}
              max={6}
              value={config.digits ?? ''}
              placeholder="2"
              onChange={(value) => set({ digits: number(value) })}
            />
          )}
          {hasStates && (
            <ValueStatesField
              value={config.states ?? []}
              isNumeric={card.kind === 'gauge'}
              onChange={(states) => set({ states })}
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
