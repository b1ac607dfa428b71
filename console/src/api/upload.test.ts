import { expect, test } from 'vitest';
import { metadataOf } from './upload';

test('metadata is Base64 of UTF-8, without empty values', () => {
  expect(metadataOf({ filename: 'a.txt', filetype: '' })).toBe('filename YS50eHQ=');
  expect(metadataOf({ filename: '泵.txt', filetype: 'text/plain' })).toBe(
    'filename 5rO1LnR4dA==,filetype dGV4dC9wbGFpbg==',
  );
});
