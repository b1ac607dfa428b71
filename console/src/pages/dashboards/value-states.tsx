/** What values of a card mean: names of the states, and the fields to enter them. */

import { ActionIcon, Fieldset, NumberInput, Select, Stack, TextInput } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { IconTrash } from '@tabler/icons-react';
import { AddEntry, Help } from '../../ui/field-inputs';
import type { Health } from '../../ui/state-badge';
import type { ValueState } from './dashboard';

export function useStateNames(): Record<Health, string> {
  const { t } = useLingui();
  return { good: t`good`, warning: t`warning`, critical: t`critical`, unknown: t`neutral` };
}

const maxStates = 20;

export function ValueStatesField({
  value,
  onChange,
  isNumeric,
}: {
  value: ValueState[];
  onChange: (value: ValueState[]) => void;
  /** Whether the card shows numbers only. */
  isNumeric: boolean;
}) {
  const { t } = useLingui();
  const names = useStateNames();
  const set = (index: number, change: Partial<ValueState>) =>
    onChange(value.map((each, at) => (at === index ? { ...each, ...change } : each)));
  return (
    <Fieldset legend={t`States`}>
      <Stack gap="xs">
        <Help
          text={
            isNumeric
              ? t`The state of a number is that of the largest limit that it reaches.`
              : t`The state of a text that is equal, or of the largest limit that a number reaches.`
          }
        />
        {value.map((each, index) => (
          <div key={index} className="card-entry">
            <div className="grow value-state">
              {isNumeric ? (
                <NumberInput
                  aria-label={t`From`}
                  placeholder={t`From`}
                  value={each.from ?? ''}
                  onChange={(next) => set(index, { from: next === '' || next === '-' ? undefined : Number(next) })}
                />
              ) : (
                <TextInput
                  aria-label={t`Value, or limit of numbers`}
                  placeholder={t`Value or limit`}
                  value={each.equals ?? each.from ?? ''}
                  onChange={(event) => set(index, { equals: event.currentTarget.value, from: undefined })}
                />
              )}
              <Select
                aria-label={t`State`}
                allowDeselect={false}
                data={Object.entries(names).map(([state, label]) => ({ value: state, label }))}
                value={each.state}
                onChange={(state) => set(index, { state: state as Health })}
              />
              <TextInput
                aria-label={t`Text`}
                placeholder={t`Text`}
                maxLength={100}
                value={each.text ?? ''}
                onChange={(event) => set(index, { text: event.currentTarget.value || undefined })}
              />
            </div>
            <ActionIcon
              aria-label={t`Remove entry ${index + 1}`}
              onClick={() => onChange(value.filter((_, at) => at !== index))}
            >
              <IconTrash size={15} />
            </ActionIcon>
          </div>
        ))}
        {value.length < maxStates && <AddEntry onClick={() => onChange([...value, { state: 'warning' }])} />}
      </Stack>
    </Fieldset>
  );
}
