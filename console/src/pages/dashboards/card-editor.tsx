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
import { SourceList } from './card-sources';
import { storedStates } from './card-values';
import { ChartFields } from './chart-fields';
import type { Card, CardConfig } from './dashboard';
import { draftOf, hasValues, newSource, showsSeveral, sourceOf, sourceTypes, type SourceDraft } from './source-draft';
import { ValueStatesField } from './value-states';

/** Kinds whose values can have states. */
const stateKinds = ['statistic', 'gauge', 'table', 'status'];
/** Kinds whose values have a unit. */
const unitKinds = ['statistic', 'gauge', 'chart', 'table', 'control'];

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
  const types = sourceTypes(card.kind, isOfNode);
  const [drafts, setDrafts] = useState<SourceDraft[]>(() => {
    const [first] = types;
    if (card.sources.length > 0 || !first) return card.sources.map(draftOf);
    return [newSource(first, card.kind === 'map' ? mapKeys : [])];
  });
  const sources = drafts.flatMap((draft) => sourceOf(draft) ?? []);
  const isComplete = sources.length === drafts.length;
  const showsValues = drafts.some(hasValues);
  const hasStates = stateKinds.includes(card.kind) && showsValues;
  const set = (change: Partial<CardConfig>) => setConfig((previous) => ({ ...previous, ...change }));
  const number = (value: string | number) => (value === '' ? undefined : Number(value));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const states = storedStates(config.states ?? []);
    const used = Object.entries({ ...config, states: hasStates && states.length > 0 ? states : undefined }).filter(
      ([, value]) => value !== undefined && value !== '',
    );
    onSave({ ...card, title, config: Object.fromEntries(used), sources });
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
          <SourceList
            value={drafts}
            onChange={setDrafts}
            // What a stored card shows already stays possible.
            types={[...new Set([...types, ...drafts.map(({ type }) => type)])]}
            mayAdd={showsSeveral(card.kind)}
            mayBeGroup={card.kind !== 'control'}
            keysHelp={card.kind === 'map' ? t`The keys of the position.` : undefined}
          />
          {drafts.some(({ type }) => type === 'topics') && (
            <SegmentedControl
              aria-label={t`What the card shows of topics`}
              value={config.shows ?? 'message'}
              onChange={(shows) => set({ shows: shows as CardConfig['shows'] })}
              data={[
                { value: 'message', label: t`Last message` },
                { value: 'rate', label: t`Messages per second` },
              ]}
            />
          )}
          {card.kind === 'chart' && <ChartFields config={config} set={set} sources={drafts} />}
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
          {unitKinds.includes(card.kind) || (card.kind === 'status' && showsValues) ? (
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
