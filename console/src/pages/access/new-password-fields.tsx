import { PasswordInput } from '@mantine/core';
import { useLingui } from '@lingui/react/macro';

export const maxPasswordLength = 256;

interface NewPasswordFieldsProps {
  /** `new`: the person has another password now. */
  kind: 'first' | 'new';
  /** What the node demands. */
  description: string;
  password: string;
  /** The password once more. */
  again: string;
  onChange: (password: string, again: string) => void;
  /** What is wrong with the password. */
  problem?: string;
}

/** A password that is chosen, typed twice. */
export function NewPasswordFields({ kind, description, password, again, onChange, problem }: NewPasswordFieldsProps) {
  const { t } = useLingui();
  return (
    <>
      <PasswordInput
        label={kind === 'new' ? t`New password` : t`Password`}
        description={description}
        autoComplete="new-password"
        required
        maxLength={maxPasswordLength}
        value={password}
        error={password !== '' && problem}
        onChange={(event) => onChange(event.currentTarget.value, again)}
      />
      <PasswordInput
        label={kind === 'new' ? t`New password again` : t`Password again`}
        autoComplete="new-password"
        required
        maxLength={maxPasswordLength}
        value={again}
        // While it is typed, its beginning counts.
        error={again !== '' && !password.startsWith(again) ? t`Not the same` : undefined}
        onChange={(event) => onChange(password, event.currentTarget.value)}
      />
    </>
  );
}
